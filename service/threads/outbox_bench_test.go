package threads

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inband/service/journal"
)

// lineChat posts to a server of this machine, which says yes.
type lineChat struct {
	*board
	client *http.Client
	url    string
	sent   atomic.Int64
	most   int64
	done   chan struct{}
}

func (c *lineChat) Post(ctx context.Context, address string, o Outgoing) (Posted, error) {
	id, err := c.raw(ctx, address, o)
	if err == nil && c.sent.Add(1) == c.most {
		close(c.done)
	}
	return Posted{ID: id}, err
}

func (c *lineChat) raw(ctx context.Context, address string, o Outgoing) (string, error) {
	b, err := json.Marshal(map[string]string{"to": address, "text": o.Text, "mark": o.Mark})
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", c.url, bytes.NewReader(b))
	if err != nil {
		return "", err
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	id, err := io.ReadAll(answer.Body)
	return string(id), err
}

// BenchmarkOutbox delivers posts of 100 threads through the outbox to a server of this
// machine, durably and in order, and compares that with posting them there directly, as many
// at one time.
func BenchmarkOutbox(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "m1")
	}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: postsAtOnce}}
	defer client.CloseIdleConnections()
	chat := &lineChat{board: newBoard(), client: client, url: server.URL, most: int64(b.N), done: make(chan struct{})}

	begun := time.Now()
	var posters sync.WaitGroup
	var next atomic.Int64
	for range postsAtOnce {
		posters.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, err := chat.raw(context.Background(), "root", Outgoing{Text: "a line of a result", Mark: newPostID()}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	posters.Wait()
	direct := time.Since(begun)

	h := openHouse(b, filepath.Join(b.TempDir(), "journal.db"))
	if err := h.threads.Attach(chat); err != nil {
		b.Fatal(err)
	}
	var list []string
	for i := range min(100, b.N) {
		list = append(list, h.chatThread(fmt.Sprint("root ", i), 1))
	}
	for i := 0; i < b.N; i += 256 {
		if err := h.store.Update(context.Background(), func(tx journal.Tx) error {
			for j := i; j < min(i+256, b.N); j++ {
				if err := h.threads.send(tx, note(list[j%len(list)], fmt.Sprint("n", j), "a line of a result")); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	begun = time.Now()
	h.start()
	<-chat.done
	through := time.Since(begun)
	b.StopTimer()
	h.close()
	b.ReportMetric(float64(b.N)/through.Seconds(), "posts/s")
	b.ReportMetric(float64(b.N)/direct.Seconds(), "direct/s")
	b.ReportMetric(direct.Seconds()/through.Seconds(), "ratio")
}
