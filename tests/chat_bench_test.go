package tests

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"inband/adaptors/webhook"
	"inband/tests/bridge/bridgetest"
)

// BenchmarkChat measures how long an order in a chat takes, from the moment that somebody
// writes it until its result stands in the thread, and compares that with one signed post
// to the same bridge, which is what nobody can do without. Both ends are processes with
// stores that are durable. It asserts nothing about time.
func BenchmarkChat(b *testing.B) {
	const warm, n = 20, 200
	c := newChat(b)
	secret, err := webhook.NewSecret([]byte(bridgetest.Secret))
	if err != nil {
		b.Fatal(err)
	}
	var raw, whole []time.Duration
	for i := range warm + n {
		body, err := json.Marshal(map[string]any{"room": "C1", "mark": fmt.Sprint("raw-", i), "text": fmt.Sprintf("%0200d\nraw-%d", i, i), "unfurl": false})
		if err != nil {
			b.Fatal(err)
		}
		r, err := http.NewRequest(http.MethodPost, c.bridge.URL+"/post", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		secret.Sign(r.Header, rand.Text(), time.Now(), body)
		begin := time.Now()
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		took := time.Since(begin)
		if resp.StatusCode != http.StatusOK {
			b.Fatalf("a raw post: %d", resp.StatusCode)
		}

		begin = time.Now()
		id := c.say("", `Let me look. [TOOL box.exec {"action":"version"}]`)
		c.bridge.Do(b, "await", map[string]any{"root": id, "posts": 1}, nil)
		if i >= warm {
			raw, whole = append(raw, took), append(whole, time.Since(begin))
		}
	}
	slices.Sort(raw)
	slices.Sort(whole)
	at := func(d []time.Duration, p int) float64 { return ms(d[len(d)*p/100]) }
	fmt.Printf("an order in a chat, written to result posted: p50 %.2f ms, p99 %.2f ms; one raw post to the same bridge: p50 %.2f ms, p99 %.2f ms; ratio %.1f and %.1f; %d of each\n",
		at(whole, 50), at(whole, 99), at(raw, 50), at(raw, 99), at(whole, 50)/at(raw, 50), at(whole, 99)/at(raw, 99), n)
	b.ReportMetric(at(whole, 50), "p50-ms")
	b.ReportMetric(at(whole, 50)/at(raw, 50), "x-raw")
	for b.Loop() { // the figures above are the benchmark
		_ = whole
	}
}
