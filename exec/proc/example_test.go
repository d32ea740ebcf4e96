package proc_test

import (
	"context"
	"fmt"
	"time"

	"inband/exec/proc"
)

func ExampleRun() {
	res, err := proc.Run(context.Background(), proc.Spec{
		Argv:      []string{"/bin/echo", "$(id)", "one word"},
		Timeout:   5 * time.Second,
		OutputMax: 64 << 10,
	})
	if err != nil {
		fmt.Println("nothing ran:", err)
		return
	}
	fmt.Printf("exit %d, stopped %q: %s", res.Exit, res.Stopped, res.Stdout.Head)
	// Output: exit 0, stopped "": $(id) one word
}
