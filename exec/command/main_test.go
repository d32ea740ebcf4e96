package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is also the program that the tests' ops run: its second word,
// after "helper", says what it does.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "helper" {
		helper(os.Args[2], os.Args[3:])
		// Not os.Exit and not return: under the race detector these take a second.
		syscall.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func helper(mode string, args []string) {
	switch mode {
	case "argv":
		json.NewEncoder(os.Stdout).Encode(args)
	case "env":
		json.NewEncoder(os.Stdout).Encode(os.Environ())
	case "fail":
		fmt.Println("on stdout")
		fmt.Fprint(os.Stderr, strings.Repeat("x", 10000)+"\nlast \x1b[31mline\n")
		syscall.Exit(3)
	case "stderr":
		fmt.Fprint(os.Stderr, "only here")
	case "binary":
		os.Stdout.WriteString("a\xff\x00b")
	case "much":
		os.Stdout.WriteString(strings.Repeat("é", 5000))
	case "killed":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stay":
		time.Sleep(time.Hour)
	case "ready":
		os.WriteFile(args[0], nil, 0o600)
		time.Sleep(time.Hour)
	default:
		panic(mode)
	}
}
