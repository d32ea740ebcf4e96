// Command bridge is a small chat of the tests, and the bridge that joins it to a gateway:
// rooms, threads and users, with every message in a file of its own that outlives the
// process. It knows nothing of the gateway but what docs/adaptors.md says, so it is also a
// second reading of that page: it signs and verifies by its own code.
//
// It serves two addresses: one for the gateway, where everything is signed, and one for
// tests (/control/…), which have people write there, look at what stands there, and have
// it misbehave. It prints both as one line of JSON when it is ready.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bridge:", err)
		os.Exit(1)
	}
}

func run() error {
	var c config
	secrets := flag.String("secrets", "", "shared secrets, separated by commas; the first signs")
	listen := flag.String("listen", "127.0.0.1:0", "where the gateway writes to")
	control := flag.String("control", "127.0.0.1:0", "where tests write to")
	flag.StringVar(&c.store, "store", "", "the file of all messages")
	flag.StringVar(&c.self, "self", "UBOT", "the gateway's own user")
	flag.StringVar(&c.events, "events", "", "URL of the gateway's events")
	flag.StringVar(&c.ca, "ca", "", "certificate authority of the gateway")
	flag.BoolVar(&c.keys, "keys", false, "make no second post with the same key")
	flag.Parse()
	c.secrets = strings.Split(*secrets, ",")
	b, err := open(c)
	if err != nil {
		return err
	}
	defer b.store.close()
	if err := b.serve(*listen); err != nil {
		return err
	}
	defer b.sever()
	ln, err := net.Listen("tcp", *control)
	if err != nil {
		return err
	}
	tests := &http.Server{Handler: b.control(), ReadHeaderTimeout: 10 * time.Second}
	ready, err := json.Marshal(map[string]string{"url": "http://" + b.address, "control": "http://" + ln.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Println(string(ready))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- tests.Serve(ln) }()
	select {
	case <-ctx.Done():
		return tests.Close()
	case err := <-served:
		return err
	}
}
