package httpapi

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BenchmarkExec runs a read op through POST /exec, makes the same read through GET,
// and asks a bare handler over the same kind of connection, in turn. Between the last
// two lie the strict reading and the identity; between the first two the door and the
// records of the call in the journal, which wait for the disk.
func BenchmarkExec(b *testing.B) {
	g := open(b)
	plain, stop := plainServer(b)
	defer stop()
	body := `{"op":"box.exec","params":{"action":"version"}}`
	ask := func(method, url, body string) time.Duration {
		r, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+g.tokens["ada"])
		r.Header.Set("Content-Type", "application/json")
		begun := time.Now()
		resp, err := g.client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			b.Fatalf("%s: %v", resp.Status, err)
		}
		return time.Since(begun)
	}
	g.client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true // two CAs, one client
	var exec, read, bare time.Duration
	for b.Loop() {
		exec += ask("POST", g.url+"/exec", body)
		read += ask("GET", g.url+"/v1/version", "")
		bare += ask("POST", plain+"/exec", body)
	}
	b.ReportMetric(float64(exec.Microseconds())/float64(b.N), "µs/exec")
	b.ReportMetric(float64(read.Microseconds())/float64(b.N), "µs/read")
	b.ReportMetric(float64(bare.Microseconds())/float64(b.N), "µs/bare")
	b.ReportMetric(float64(exec)/float64(bare), "exec/bare")
	b.ReportMetric(float64(read)/float64(bare), "read/bare")
}

func plainServer(b *testing.B) (url string, stop func()) {
	b.Helper()
	cert, _, err := LoadOrMakeCA(filepath.Join(b.TempDir(), "tls"), nil)
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"ok":true,"result":{"version":"v0-test"}}`)
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.ServeTLS(ln, "", "")
	}()
	return "https://" + ln.Addr().String(), func() {
		srv.Shutdown(context.Background())
		<-done
	}
}
