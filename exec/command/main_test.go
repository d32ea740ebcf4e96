package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"inband/exec/proc"
)

// The test binary is also the program that the tests' ops run: its second word,
// after "helper", says what it does.
func TestMain(m *testing.M) {
	Canary()
	Helper()
	if len(os.Args) > 2 && os.Args[1] == "helper" {
		helper(os.Args[2], os.Args[3:])
		// Not os.Exit and not return: under the race detector these take a second.
		syscall.Exit(0)
	}
	goleak.VerifyTestMain(discarding{m})
}

// discarding ends what was made ahead when the tests are done.
type discarding struct{ *testing.M }

func (d discarding) Run() int {
	defer proc.Discard()
	return d.M.Run()
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
	case "leave":
		for _, arg := range args {
			if err := leave(strings.Split(arg, ":")); err != nil {
				fmt.Fprintln(os.Stderr, arg, err)
				syscall.Exit(9)
			}
		}
	case "killed":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stay":
		time.Sleep(time.Hour)
	case "ready":
		os.WriteFile(args[0], nil, 0o600)
		time.Sleep(time.Hour)
	case "attack":
		var t target
		if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
			panic(err)
		}
		for _, a := range attack(t) {
			fmt.Printf("%s = %s\n", a.Name, a.Got)
		}
	case "foreign":
		// mov $20, %eax; int $0x80; ret: getpid by its number on 386
		code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			panic(err)
		}
		copy(code, []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3})
		if err := unix.Mprotect(code, unix.PROT_READ|unix.PROT_EXEC); err != nil {
			panic(err)
		}
		entry := &code[0]
		function := &entry
		(*(*func())(unsafe.Pointer(&function)))()
	case "besiege":
		if err := besiege(args[0], args[1], args[2]); err != nil {
			fmt.Println(err)
			syscall.Exit(1)
		}
	default:
		panic(mode)
	}
}
