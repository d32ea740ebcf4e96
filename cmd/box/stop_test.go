package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inband/ops"
)

const slowOps = `provider: test
title: For the tests
ops:
  test.slow:
    summary: Wait for a minute.
    side_effecting: false
    argv: [/usr/bin/sleep, '60']
    timeout: 2m
  test.act:
    summary: Wait for a minute, as something with an effect.
    side_effecting: true
    argv: [/usr/bin/sleep, '60']
    timeout: 2m
`

// start runs a gateway on folder and returns a client of its operator, and what ends
// the gateway and returns Run's error.
func start(t *testing.T, folder stateFolder, grace time.Duration) (*client, func() error) {
	t.Helper()
	listening := make(chan address, 1)
	g, err := openGateway(t.Context(), gatewayConfig{
		Folder: folder, Listen: "127.0.0.1:0", Grace: grace, Version: "test", Log: slog.New(slog.DiscardHandler),
		Listening: func(at address) { listening <- at },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	select {
	case <-listening:
	case err := <-ended:
		t.Fatal(err)
	}
	a := testApp()
	a.state = string(folder)
	c, err := a.connect()
	if err != nil {
		t.Fatal(err)
	}
	return c, func() error {
		c.close()
		cancel()
		return <-ended
	}
}

// TestStopInTheMiddle: a gateway that is told to stop while calls run and somebody
// follows stops what runs at the end of the grace, writes what became of it, ends the
// streams, and leaves no goroutine behind. The next one has all of it.
func TestStopInTheMiddle(t *testing.T) {
	defer goleak.VerifyNone(t)
	folder := stateFolder(t.TempDir())
	if err := os.MkdirAll(folder.ops(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder.ops(), "test.yaml"), []byte(slowOps), 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := start(t, folder, 50*time.Millisecond)
	if _, err := c.get(t.Context(), request{route: routeAddAgent, body: map[string]string{"id": "ada", "role": "agent"}}, nil); err != nil {
		t.Fatal(err)
	}
	got, _, err := c.reply(t.Context(), replyBody{
		Agent: "ada", Room: "lobby", Message: "m1", Text: "[TOOL tools.list {}] [TOOL test.slow {}]",
	})
	if err != nil {
		t.Fatal(err)
	}
	acted, _, err := testApp().order(t.Context(), c, order{op: "test.act"}, true)
	if err != nil {
		t.Fatal(err)
	}
	// Running, or the stop would find it before it began.
	for shown := (callShown{}); shown.State != ops.Running; {
		if shown, _, err = c.call(t.Context(), acted.Call); err != nil {
			t.Fatal(err)
		}
	}
	followed := make(chan error, 1)
	seen := make(chan struct{}, 8)
	follower := newClient(c.base, c.token, c.http.Transport.(*http.Transport).TLSClientConfig.RootCAs)
	go func() {
		followed <- follower.followPosts(t.Context(), got.Thread, func(json.RawMessage, post) error {
			seen <- struct{}{}
			return nil
		})
	}()
	<-seen // it is connected
	if err := stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if err := <-followed; err == nil || !strings.Contains(err.Error(), "no gateway") {
		t.Errorf("following a gateway that has ended: %v", err)
	}
	follower.close()

	c, stop = start(t, folder, time.Second)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	posts, err := c.answers(t.Context(), got) // each order has its result, also the stopped one
	if err != nil || len(posts) != 3 {
		t.Errorf("%d posts (%v), want the reply and two results", len(posts), err)
	}
	shown, _, err := c.call(t.Context(), acted.Call)
	if err != nil || !shown.State.Settled() || shown.State == ops.Succeeded {
		t.Errorf("the call that was stopped is %s (%v)", shown.State, err)
	}
}
