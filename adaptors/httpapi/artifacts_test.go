package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/ops"
	"inband/service"
	"inband/service/artifacts"
)

// What the op test.keep publishes: a page with a name that no header may take as it is,
// and bytes that are too many to be checked before they are sent.
var keeps = []struct {
	name, kind string
	bytes      []byte
}{
	{"out/a \"page\"\u00e9.html", "text/html", []byte("<script>alert(1)</script>")},
	{"large", "application/x-thing", bytes.Repeat([]byte("0123456789abcde\n"), 3<<16)},
}

func keep(ctx context.Context, files *artifacts.Store) (ops.Outcome, error) {
	o := ops.Success(ops.NewResult("kept", ""))
	for _, k := range keeps {
		d, size, err := files.Put(ctx, bytes.NewReader(k.bytes), 1<<30)
		if err != nil {
			return ops.Outcome{}, err
		}
		o.Published = append(o.Published, ops.Published{File: k.name, Kind: k.kind, Digest: string(d), Bytes: size})
	}
	return o, nil
}

// keep has by publish the files, and returns them in their order.
func (g *gateway) keep(by ops.IdentityID) (list []service.ArtifactListing) {
	g.t.Helper()
	g.ok(200, request{method: "POST", path: "/exec", as: by, body: `{"op":"test.keep"}`}, nil)
	var page service.ArtifactPage
	g.get(by, "/v1/artifacts", &page)
	for i := range keeps {
		list = append(list, page.Artifacts[len(keeps)-1-i])
	}
	return list
}

// bytesOf is an answer of another kind than the API's own.
func (g *gateway) bytesOf(q request) (a reply) {
	g.t.Helper()
	res, err := g.client.Do(g.build(g.t.Context(), q))
	if err != nil {
		g.t.Fatal(err)
	}
	defer res.Body.Close()
	a.status, a.header = res.StatusCode, res.Header
	if a.body, err = io.ReadAll(res.Body); err != nil {
		g.t.Fatalf("%s %s: %v", q.method, q.path, err)
	}
	return a
}

func TestArtifacts(t *testing.T) {
	g := open(t)
	kept := g.keep("scout")
	for i, k := range keeps {
		sum := sha256.Sum256(k.bytes)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		if a := kept[i]; string(a.Digest) != digest || a.Name != k.name || a.Kind != k.kind || a.Bytes != int64(len(k.bytes)) || a.By.ID != "scout" {
			t.Errorf("listed %+v", a)
		}
		for _, by := range []ops.IdentityID{"scout", "ada", "mx"} {
			var shown service.ArtifactShowing
			g.get(by, "/v1/artifacts/"+digest, &shown)
			if string(shown.Digest) != digest || shown.Bytes != int64(len(k.bytes)) || len(shown.Published) != 1 || shown.Published[0].Name != k.name {
				t.Errorf("%s is shown %+v", by, shown)
			}
			a := g.bytesOf(request{method: "GET", path: "/v1/artifacts/" + digest + "/bytes", as: by})
			if a.status != 200 || !bytes.Equal(a.body, k.bytes) {
				t.Errorf("%s gets %d and %d bytes", by, a.status, len(a.body))
			}
			// Whatever was declared, no browser shows it.
			for name, want := range map[string]string{
				"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff", "ETag": `"` + digest + `"`,
				"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; sandbox", "Accept-Ranges": "none",
			} {
				if got := a.header.Get(name); got != want {
					t.Errorf("%s: %s is %q, want %q", k.name, name, got, want)
				}
			}
			if got := a.header.Get("Content-Disposition"); !strings.HasPrefix(got, "attachment; filename") || strings.Contains(got, "out/") || strings.ContainsRune(got, 'é') {
				t.Errorf("%s: Content-Disposition is %q", k.name, got)
			}
		}
		head := g.bytesOf(request{method: "HEAD", path: "/v1/artifacts/" + digest + "/bytes", as: "scout"})
		if head.status != 200 || len(head.body) != 0 || head.header.Get("ETag") != `"`+digest+`"` {
			t.Errorf("HEAD: %s", head)
		}
		for tags, want := range map[string]int{
			`"` + digest + `"`: 304, `W/"` + digest + `"`: 304, `"x", "` + digest + `"`: 304, `*`: 304, `"x"`: 200, digest: 200,
		} {
			a := g.bytesOf(request{method: "GET", path: "/v1/artifacts/" + digest + "/bytes", as: "scout", header: map[string]string{"If-None-Match": tags}})
			if a.status != want || want == 304 && len(a.body) > 0 {
				t.Errorf("If-None-Match %s: %d and %d bytes, want %d", tags, a.status, len(a.body), want)
			}
		}
	}
	var page service.ArtifactPage
	g.get("scout", "/v1/artifacts?limit=1", &page)
	if len(page.Artifacts) != 1 || page.Artifacts[0].Name != keeps[1].name || page.Next == "" {
		t.Errorf("the first page: %+v", page)
	}
	next := string(page.Next)
	page = service.ArtifactPage{}
	g.get("scout", "/v1/artifacts?limit=1&after="+next, &page)
	if len(page.Artifacts) != 1 || page.Artifacts[0].Name != keeps[0].name || page.Next != "" {
		t.Errorf("the second page: %+v", page)
	}
}

// Who may not read a call's output learns nothing of what it published, by any way and
// with the digest in hand.
func TestArtifactsOfOthers(t *testing.T) {
	g := open(t)
	digest := string(g.keep("scout")[0].Digest)
	nothing := "sha256:" + strings.Repeat("0", 64)
	for _, tail := range []string{"", "/bytes"} {
		for _, method := range []string{"GET", "HEAD"} {
			there := g.do(request{method: method, path: "/v1/artifacts/" + digest + tail, as: "other"})
			not := g.do(request{method: method, path: "/v1/artifacts/" + nothing + tail, as: "other"})
			same := strings.ReplaceAll(string(there.body), digest, nothing) == string(not.body)
			if there.status != 404 || not.status != 404 || !same || method == "GET" && there.fault.Code != ops.NotFound {
				t.Errorf("%s %s: %s, and for what is not there %s", method, tail, there, not)
			}
			if a := g.do(request{method: method, path: "/v1/artifacts/" + digest + tail}); a.status != 401 {
				t.Errorf("%s %s without a token: %s", method, tail, a)
			}
		}
	}
	for _, arg := range []string{digest, nothing} {
		a := g.do(request{method: "POST", path: "/exec", as: "other", body: `{"op":"box.exec","params":{"action":"artifact","arg":"` + arg + `"}}`})
		if a.status != 404 || a.fault.Code != ops.NotFound {
			t.Errorf("box.exec: %s", a)
		}
	}
	var page service.ArtifactPage
	g.get("other", "/v1/artifacts", &page)
	if len(page.Artifacts) != 0 {
		t.Errorf("other is listed %+v", page)
	}
	for _, by := range []ops.IdentityID{"other", "scout", "mx"} {
		if a := g.do(request{method: "POST", path: "/v1/artifacts/verify", as: by}); a.status != 403 {
			t.Errorf("%s verifies: %s", by, a)
		}
	}
	// An odd name is no path.
	for _, odd := range []string{"x", "sha256:..", "..%2F..%2Fjournal.db", "sha256:%2e%2e%2f" + digest[10:], strings.ToUpper(digest), digest + "0", "%F0%9F%92%A9"} {
		for _, tail := range []string{"", "/bytes"} {
			if a := g.do(request{method: "GET", path: "/v1/artifacts/" + odd + tail, as: "ada"}); a.status != 404 {
				t.Errorf("%s%s: %s", odd, tail, a)
			}
		}
	}
}

func TestDamagedArtifactsAreNotSent(t *testing.T) {
	g := open(t)
	kept := g.keep("scout")
	spoil := func(a service.ArtifactListing, change func(b []byte)) {
		name := strings.TrimPrefix(string(a.Digest), "sha256:")
		path := filepath.Join(g.files, "sha256", name[:2], name)
		b, err := os.ReadFile(path)
		if err == nil {
			change(b)
			err = errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var report service.ArtifactReport
	g.ok(200, request{method: "POST", path: "/v1/artifacts/verify", as: "ada"}, &report)
	if !report.OK || report.Artifacts != 2 || report.Usage.Files != 2 {
		t.Errorf("verified: %+v", report)
	}
	for _, a := range kept {
		spoil(a, func(b []byte) { b[len(b)-1] ^= 1 })
	}
	small := g.do(request{method: "GET", path: "/v1/artifacts/" + string(kept[0].Digest) + "/bytes", as: "scout"})
	if small.status != 500 || small.fault.Code != ops.Internal || bytes.Contains(small.body, []byte("script")) {
		t.Errorf("small: %s", small)
	}
	// What is too long to be checked first breaks off, and does not look whole.
	res, err := g.client.Do(g.build(t.Context(), request{method: "GET", path: "/v1/artifacts/" + string(kept[1].Digest) + "/bytes", as: "scout"}))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK || err == nil || len(b) >= len(keeps[1].bytes) {
		t.Errorf("large: %s, %d of %d bytes, %v", res.Status, len(b), len(keeps[1].bytes), err)
	}
	report = service.ArtifactReport{}
	g.ok(200, request{method: "POST", path: "/v1/artifacts/verify", as: "ada"}, &report)
	if report.OK || len(report.Found) != 2 {
		t.Errorf("verified: %+v", report)
	}
	g.logs.await(t, "gone or damaged")
	g.logs.await(t, "not sent whole")
}
