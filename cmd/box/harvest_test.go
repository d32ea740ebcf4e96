package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"inband/harvester"
)

// TestHarvestVectors: box harvest --jsonl prints the calls that the cases expect.
func TestHarvestVectors(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "harvester", "testdata", "harvest.json"))
	if err != nil {
		t.Fatal(err)
	}
	type call struct {
		Form      string          `json:"form"`
		Op        string          `json:"op"`
		Params    json.RawMessage `json:"params"`
		Key       string          `json:"key"`
		ID        string          `json:"id"`
		Start     int64           `json:"start"`
		End       int64           `json:"end"`
		ParamsRaw string          `json:"params_raw"`
	}
	var cases []struct {
		ID     string
		Reply  string
		Expect []call
		Hosts  []string `json:"exec_hosts"`
	}
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 197 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		var out bytes.Buffer
		args := []string{"harvest", "--jsonl"}
		for _, host := range c.Hosts {
			args = append(args, "--exec-host", host)
		}
		a := newApp(iotest.HalfReader(strings.NewReader(c.Reply)), &out, &out, func(string) string { return "" })
		if code := a.run(t.Context(), args); code != 0 {
			t.Fatalf("%s: exit code %d: %s", c.ID, code, out.String())
		}
		got := []call{}
		for line := range strings.Lines(out.String()) {
			var one call
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("%s: the line %q: %v", c.ID, line, err)
			}
			one.ParamsRaw = string(one.Params)
			got = append(got, one)
		}
		for i := range c.Expect {
			if c.Expect[i].ParamsRaw == "" && i < len(got) {
				c.Expect[i].ParamsRaw = got[i].ParamsRaw
			}
		}
		same := cmp.Comparer(func(a, b json.RawMessage) bool {
			var x, y any
			return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && cmp.Equal(x, y)
		})
		if diff := cmp.Diff(c.Expect, got, same); diff != "" {
			t.Errorf("%s: reply %q (-want +got):\n%s", c.ID, c.Reply, diff)
		}
	}
}

func TestDirectiveLine(t *testing.T) {
	for _, test := range []struct {
		d    harvester.Directive
		want string
	}{
		{
			harvester.Directive{Form: "tool", Op: "a", Params: []byte(`{"n":1.0, "s":"\u00e9<"}`), Start: 1, End: 9},
			`{"form":"tool","op":"a","params":{"n":1.0, "s":"\u00e9<"},"start":1,"end":9}`,
		},
		{
			harvester.Directive{Form: "exec", Op: "a", Params: []byte("{\n \"a\":\r\n1}"), Key: "k7q", ID: "x\"\n<", Start: 0, End: 2},
			`{"form":"exec","op":"a","params":{  "a":  1},"key":"k7q","id":"x\"\n<","start":0,"end":2}`,
		},
	} {
		if got := string(appendDirective(nil, test.d)); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// TestHarvestStream: what a piece completes is printed before the next one is read.
func TestHarvestStream(t *testing.T) {
	var out bytes.Buffer
	read := 0
	in := readerFunc(func(p []byte) (int, error) {
		if lines := strings.Count(out.String(), "\n"); lines != read {
			t.Errorf("%d lines after %d orders", lines, read)
		}
		if read++; read > 3 {
			read--
			return 0, fmt.Errorf("stop")
		}
		return copy(p, "[TOOL a {}]\n"), nil
	})
	h := &harvest{out: bufio.NewWriterSize(&out, 64<<10), jsonl: true}
	err := h.read(t.Context(), in, harvester.Config{Found: h.found}, "a reader")
	if err == nil || err.Error() != "read a reader: stop" {
		t.Errorf("error %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestHarvestOutputGone: an output that takes no more ends the reading.
func TestHarvestOutputGone(t *testing.T) {
	h := &harvest{out: bufio.NewWriterSize(brokenWriter{}, 16), jsonl: true}
	endless := readerFunc(func(p []byte) (int, error) { return copy(p, "[TOOL a {}]\n"), nil })
	if err := h.read(t.Context(), endless, harvester.Config{Found: h.found}, "x"); err == nil {
		t.Error("no error")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }
