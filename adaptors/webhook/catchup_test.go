package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/threads"
)

// past is a history with a cursor: payloads, of which a page holds two.
type past struct {
	mu       sync.Mutex
	now      time.Time
	messages []string
	epoch    string
	fail     func(w http.ResponseWriter) bool // true: it has answered
	asked    int
}

func (p *past) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.fail != nil && p.fail(w) {
		return
	}
	var in struct {
		Cursor string `json:"cursor"`
		Limit  int    `json:"limit"`
	}
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &in); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	from := 0
	if in.Cursor != "" {
		rest, ok := strings.CutPrefix(in.Cursor, p.epoch+"/")
		if _, err := fmt.Sscan(rest, &from); !ok || err != nil {
			io.WriteString(w, `{"ok":false,"error":"unknown_cursor"}`)
			return
		}
	}
	to := min(from+min(2, in.Limit), len(p.messages))
	fmt.Fprintf(w, `{"ok":true,"messages":[%s],"cursor":"%s/%d","now":"%s"}`, strings.Join(p.messages[from:to], ","), p.epoch, to, p.now.Format(time.RFC3339Nano))
}

func (p *past) write(texts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range texts {
		p.now = p.now.Add(time.Minute)
		p.messages = append(p.messages, fmt.Sprintf(`{"room":"C1","message":"m-%d","user":"U2","text":"%s","written_at":"%s"}`, len(p.messages)+1, text, p.now.Format(time.RFC3339)))
	}
	p.now = p.now.Add(time.Minute)
}

func newPast(t *testing.T) (*past, *Adaptor, *intake) {
	p := &past{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), epoch: "a"}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return p, newAdaptor(t, server.URL), &intake{}
}

// tb-025: what was there before is never run, whether the cursor is valid, lost or
// unknown; what came after it is.
func TestCatchUp(t *testing.T) {
	ctx := context.Background()
	p, a, into := newPast(t)
	catchUp := func(alerts int64, want ...string) {
		t.Helper()
		into.mu.Lock()
		into.taken = slices.DeleteFunc(into.taken, func(in threads.Inbound) bool { return in.CatchUp })
		into.mu.Unlock()
		if err := a.catchUp(ctx, into); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, into.texts()); d != "" {
			t.Errorf("taken (-want +got):\n%s", d)
		}
		if got := a.State().Alerts; got != alerts {
			t.Errorf("%d alerts, want %d", got, alerts)
		}
	}
	catchUp(0)
	p.write("1", "2", "3", "4", "5") // all later than the first look: none of it is history
	catchUp(0, "1 (caught up)", "2 (caught up)", "3 (caught up)", "4 (caught up)", "5 (caught up)")
	catchUp(0)
	p.write("6")
	catchUp(0, "6 (caught up)")
	into.cursor = ""
	p.write("7")
	catchUp(1, "1 (caught up) (history)", "2 (caught up) (history)", "3 (caught up) (history)", "4 (caught up) (history)",
		"5 (caught up) (history)", "6 (caught up) (history)", "7 (caught up) (history)")
	p.write("8")
	catchUp(1, "8 (caught up)")
	p.epoch = "b" // the bridge has lost its cursors
	catchUp(2, "1 (caught up) (history)", "2 (caught up) (history)", "3 (caught up) (history)", "4 (caught up) (history)",
		"5 (caught up) (history)", "6 (caught up) (history)", "7 (caught up) (history)", "8 (caught up) (history)")
	p.write("9")
	catchUp(2, "9 (caught up)")
	into.cursor = "nonsense"
	catchUp(3, "1 (caught up) (history)", "2 (caught up) (history)", "3 (caught up) (history)", "4 (caught up) (history)",
		"5 (caught up) (history)", "6 (caught up) (history)", "7 (caught up) (history)", "8 (caught up) (history)", "9 (caught up) (history)")
}

// A start that is cut short in the middle of what is history draws the same line the
// next time.
func TestCatchUpIsCutShort(t *testing.T) {
	p, a, into := newPast(t)
	p.write("1", "2", "3", "4")
	n := 0
	p.fail = func(w http.ResponseWriter) bool {
		if n++; n == 2 {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	}
	if err := a.catchUp(context.Background(), into); err == nil {
		t.Fatal("the second page was not missed")
	}
	p.write("5") // after the first attempt
	if err := a.catchUp(context.Background(), into); err != nil {
		t.Fatal(err)
	}
	want := []string{"1 (caught up) (history)", "2 (caught up) (history)", "3 (caught up) (history)", "4 (caught up) (history)", "5 (caught up)"}
	if d := cmp.Diff(want, into.texts()); d != "" {
		t.Errorf("taken (-want +got):\n%s", d)
	}
}

// tb-010: the cursor moves behind what was taken only, and a page that comes again is
// known.
func TestCursorFollowsWhatIsTaken(t *testing.T) {
	p, a, into := newPast(t)
	ctx := context.Background()
	if err := a.catchUp(ctx, into); err != nil {
		t.Fatal(err)
	}
	p.write("1")
	if err := a.catchUp(ctx, into); err != nil {
		t.Fatal(err)
	}
	before := into.cursor
	p.write("2", "3")
	into.fail = errors.New("the disk is full")
	if err := a.catchUp(ctx, into); err == nil || into.cursor != before {
		t.Errorf("%v, and the cursor went from %s to %s", err, before, into.cursor)
	}
	if err := a.catchUp(ctx, into); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"1 (caught up)", "2 (caught up)", "3 (caught up)"}, into.texts()); d != "" {
		t.Errorf("taken (-want +got):\n%s", d)
	}
}

// A message that cannot be read keeps nobody from those behind it.
func TestBadMessagesAreLeftOut(t *testing.T) {
	p, a, into := newPast(t)
	if err := a.catchUp(context.Background(), into); err != nil {
		t.Fatal(err)
	}
	p.write("1")
	p.messages = append(p.messages, `{"room":"C1"}`, `{"room":"C1","room":"C2"}`, "{\"room\":\"\xff\"}", `[]`, `null`)
	p.write("7")
	into.fail = ops.Faultf(ops.TooLarge, "too long")
	p.write("8")
	if err := a.catchUp(context.Background(), into); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"7 (caught up)", "8 (caught up)"}, into.texts()); d != "" {
		t.Errorf("taken (-want +got):\n%s", d)
	}
	if got := a.State().Skipped; got != 6 {
		t.Errorf("%d left out, want 6", got)
	}
}

func TestBadHistories(t *testing.T) {
	for name, answer := range map[string]string{
		"no JSON":            `<html>`,
		"no ok":              `{"messages":[]}`,
		"an error":           `{"ok":false,"error":"internal_error"}`,
		"no cursor known":    `{"ok":false,"error":"unknown_cursor"}`,
		"no cursor":          `{"ok":true,"messages":[{}]}`,
		"an endless cursor":  `{"ok":true,"messages":[{}],"cursor":"` + strings.Repeat("c", maxCursor+1) + `"}`,
		"the cursor it had":  `{"ok":true,"messages":[{}],"cursor":""}`,
		"a page without end": `{"ok":true,"messages":[{"x":"` + strings.Repeat("x", maxPage) + `"}],"cursor":"c"}`,
	} {
		t.Run(name, func(t *testing.T) {
			p, a, into := newPast(t)
			p.fail = func(w http.ResponseWriter) bool { io.WriteString(w, answer); return true }
			if err := a.catchUp(context.Background(), into); err == nil {
				t.Error("no error")
			}
			if p.asked > 10 {
				t.Errorf("asked %d times", p.asked)
			}
		})
	}
}

// A page that is too long is asked for in smaller parts.
func TestLongPages(t *testing.T) {
	p, a, into := newPast(t)
	if err := a.catchUp(context.Background(), into); err != nil {
		t.Fatal(err)
	}
	p.write(strings.Repeat("x", maxPage-1000), strings.Repeat("y", maxPage-1000))
	if err := a.catchUp(context.Background(), into); err != nil {
		t.Fatal(err)
	}
	if len(into.taken) != 2 {
		t.Errorf("%d taken, want 2", len(into.taken))
	}
}

// An adaptor that runs reads the history at once, and again when it is told of a gap.
func TestGap(t *testing.T) {
	p, a, into := newPast(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	read := make(chan struct{}, 100)
	p.fail = func(http.ResponseWriter) bool { read <- struct{}{}; return false }
	ran := make(chan error)
	go func() { ran <- a.Run(ctx, into) }()
	<-read
	p.write("1", "2", "3")
	if heard, err := deliver(t, a, `{"gap":true}`); err != nil || heard.Status != "ignored" {
		t.Errorf("the gap: %+v, %v", heard, err)
	}
	for len(into.texts()) < 3 {
		<-read
	}
	cancel()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ends with %v", err)
	}
	if a.State().Running {
		t.Error("it still runs")
	}
	if d := cmp.Diff([]string{"1 (caught up)", "2 (caught up)", "3 (caught up)"}, into.texts()); d != "" {
		t.Errorf("taken (-want +got):\n%s", d)
	}
}
