package httpapi

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestConfigIsChecked(t *testing.T) {
	var whole Config
	open(t, func(c *Config) { whole = *c })
	for name, change := range map[string]func(*Config){
		"no door":             func(c *Config) { c.Door = nil },
		"no reads":            func(c *Config) { c.Reads = nil },
		"no replies":          func(c *Config) { c.Replies = nil },
		"no identities":       func(c *Config) { c.Identities = nil },
		"no events":           func(c *Config) { c.Events = nil },
		"no reload":           func(c *Config) { c.Reload = nil },
		"no readiness":        func(c *Config) { c.Ready = nil },
		"no version":          func(c *Config) { c.Version = "" },
		"no log":              func(c *Config) { c.Log = nil },
		"a negative limit":    func(c *Config) { c.Limits.Wait = -1 },
		"a host that is none": func(c *Config) { c.Hosts = []string{""} },
	} {
		c := whole
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := New(whole); err != nil {
		t.Errorf("the whole one: %v", err)
	}
}

func TestOnlyTLS13(t *testing.T) {
	g := open(t)
	c, err := tls.Dial("tcp", g.addr, &tls.Config{RootCAs: g.roots, MaxVersion: tls.VersionTLS12})
	if err == nil {
		c.Close()
		t.Error("TLS 1.2 is spoken")
	}
	if got := g.raw().ConnectionState().Version; got != tls.VersionTLS13 {
		t.Errorf("got version %x, want TLS 1.3", got)
	}
}

// deadlines is a writer that notes the deadlines it is given.
type deadlines struct {
	*httptest.ResponseRecorder
	write []time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = append(d.write, t); return nil }

// A connection is used again: what was left of the time for one answer must not cut
// the next one short.
func TestDeadlineOfEachAnswer(t *testing.T) {
	g := open(t)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodGet, "https://localhost/healthz", nil)
	g.server.Handler().ServeHTTP(w, r)
	if len(w.write) != 2 || !w.write[0].IsZero() || w.write[1].IsZero() || w.Code != 200 {
		t.Errorf("got %d with the deadlines %v, want none and then one", w.Code, w.write)
	}
}
