package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/plane/wire"
)

// yard is a plane that takes the files of wk, as they come.
type yard struct {
	*planeOf
	artifacts.Uploads
}

func newYard(t *testing.T) *yard {
	t.Helper()
	files, err := artifacts.Open(artifacts.Config{Folder: filepath.Join(t.TempDir(), "yard")})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(t.TempDir(), "yard.db"), Schemas: []journal.Schema{artifacts.Schema()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(); files.Close() })
	return &yard{&planeOf{}, artifacts.Uploads{Journal: store, Files: files}}
}

// begin announces b, which wk is to send.
func (y *yard) begin(t *testing.T, b []byte) artifacts.Upload {
	t.Helper()
	up, err := y.Uploads.Begin(t.Context(), artifacts.Declared{Digest: artifacts.Digest(wire.Digest(b)), Bytes: int64(len(b)), Name: "report", Run: "r-1", Delegation: "d-1",
		Sender: "wk", Owner: ops.Identity{ID: "scout", Role: ops.Agent}})
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func (y *yard) Begin(ctx context.Context, envelope []byte) (wire.Session, error) {
	return y.planeOf.Begin(ctx, envelope)
}

func (y *yard) Upload(_ context.Context, by ops.Identity, envelope []byte) (wire.Uploading, error) {
	return wire.Uploading{Upload: "u-1", Offset: 3}, y.note("upload", by, envelope)
}

func (y *yard) Append(ctx context.Context, by ops.Identity, id string, offset int64, r io.Reader) (wire.Uploading, error) {
	up, err := y.Uploads.Append(ctx, artifacts.UploadID(id), by.ID, offset, r)
	var off *artifacts.OffsetError
	switch {
	case errors.As(err, &off):
		err = ops.Faultf(ops.OutOfSequence, "the next piece begins at %d", off.Want).With("expected", off.Want)
	case errors.Is(err, artifacts.ErrNoUpload):
		err = ops.Faultf(ops.NotFound, "there is no such upload")
	case errors.Is(err, artifacts.ErrTooLarge):
		err = ops.Faultf(ops.TooLarge, "more than was announced")
	case errors.Is(err, artifacts.ErrUploadBusy):
		err = ops.Faultf(ops.InProgress, "another piece is arriving")
	}
	return wire.Uploading{Upload: id, Offset: up.Received, Done: up.Done}, err
}

func (y *yard) Uploaded(ctx context.Context, by ops.Identity, id string) (wire.Uploading, error) {
	up, err := y.Get(ctx, artifacts.UploadID(id), by.ID)
	if err != nil {
		err = ops.Faultf(ops.NotFound, "there is no such upload")
	}
	return wire.Uploading{Upload: id, Offset: up.Received, Done: up.Done}, err
}

func (y *yard) Fetch(_ context.Context, by ops.Identity, digest string) (*service.ArtifactBytes, error) {
	f, err := y.Files.Open(artifacts.Digest(digest))
	if err != nil || by.ID != "wk" {
		return nil, ops.Faultf(ops.NotFound, "there is nothing of that digest")
	}
	return &service.ArtifactBytes{ReadCloser: f, Size: f.Size(), Name: "report"}, nil
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(rand.Uint32())}).Read(b)
	return b
}

// patch is a piece of an upload on its way.
func (g *gateway) patch(as ops.IdentityID, id string, offset string, body io.Reader, header ...string) *http.Request {
	g.t.Helper()
	q := request{method: "PATCH", path: "/v1/plane/uploads/" + id, as: as}
	r := g.build(g.t.Context(), q)
	if body != nil {
		r.Body = io.NopCloser(body)
		r.ContentLength = -1
		if b, ok := body.(*bytes.Reader); ok {
			r.ContentLength = int64(b.Len())
		}
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	r.Header.Set("Upload-Offset", offset)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			r.Header.Del(header[i])
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// A file far longer than any other body comes in pieces and goes again, whole.
func TestUploads(t *testing.T) {
	y := newYard(t)
	g := withPlane(t, y, Limits{})
	b := random(5<<20 + 3)
	up := y.begin(t, b)
	id := string(up.ID)
	a := g.send(g.patch("wk", id, "0", bytes.NewReader(b[:3<<20])))
	if want := fmt.Sprintf(`{"upload":%q,"offset":%d,"done":false}`, id, 3<<20); a.status != 200 || strings.TrimSpace(string(a.body)) != want {
		t.Fatalf("a piece: %s, want %s", a, want)
	}
	if a := g.send(g.patch("wk", id, "0", bytes.NewReader(b))); a.status != 409 || a.fault.Code != ops.OutOfSequence || fmt.Sprint(a.fault.Details["expected"]) != fmt.Sprint(float64(3<<20)) {
		t.Errorf("from the beginning: %s", a)
	}
	var at UploadState
	if g.get("wk", "/v1/plane/uploads/"+id, &at); at.Offset != 3<<20 || at.Done {
		t.Errorf("it is at %+v", at)
	}
	if a := g.send(g.patch("wk", id, fmt.Sprint(3<<20), io.MultiReader(bytes.NewReader(b[3<<20:])))); a.status != 200 || !strings.Contains(string(a.body), `"done":true`) { // of no declared length
		t.Errorf("the rest: %s", a)
	}
	if a := g.send(g.patch("wk", id, fmt.Sprint(len(b)), nil)); a.status != 200 { // its answer may have been lost
		t.Errorf("an empty piece at the end: %s", a)
	}
	got := g.bytesOf(request{method: "GET", path: "/v1/plane/artifacts/" + string(up.Digest), as: "wk"})
	if got.status != 200 || !bytes.Equal(got.body, b) || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("fetched: %d, %d bytes", got.status, len(got.body))
	}
	for _, as := range []ops.IdentityID{"vf"} {
		if a := g.do(request{method: "GET", path: "/v1/plane/artifacts/" + string(up.Digest), as: as}); a.status != 404 {
			t.Errorf("%s fetches: %s", as, a)
		}
		if a := g.do(request{method: "GET", path: "/v1/plane/uploads/" + id, as: as}); a.status != 404 {
			t.Errorf("%s asks: %s", as, a)
		}
	}
	for _, as := range []ops.IdentityID{"scout", "ada", "mx"} { // who are no workers
		for _, q := range []*http.Request{g.patch(as, id, "0", bytes.NewReader(b[:9])), g.build(t.Context(), request{method: "GET", path: "/v1/plane/uploads/" + id, as: as}),
			g.build(t.Context(), request{method: "GET", path: "/v1/plane/artifacts/" + string(up.Digest), as: as})} {
			if a := g.send(q); a.status != 403 || a.fault.Code != ops.NotPermitted {
				t.Errorf("%s %s as %s: %s", q.Method, q.URL.Path, as, a)
			}
		}
	}
	if a := g.send(g.patch("", id, "0", bytes.NewReader(b[:9]))); a.status != 401 {
		t.Errorf("without a token: %s", a)
	}
}

func TestUploadsRefuse(t *testing.T) {
	y := newYard(t)
	g := withPlane(t, y, Limits{})
	b := random(1000)
	id := string(y.begin(t, b).ID)
	for name, tc := range map[string]struct {
		req  *http.Request
		want int
	}{
		"no offset":        {g.patch("wk", id, "0", bytes.NewReader(b), "Upload-Offset", ""), 400},
		"an offset of -1":  {g.patch("wk", id, "-1", bytes.NewReader(b)), 400},
		"an offset of +0":  {g.patch("wk", id, "+0", bytes.NewReader(b)), 400},
		"an offset of 00":  {g.patch("wk", id, "00", bytes.NewReader(b)), 400},
		"an offset of 0x1": {g.patch("wk", id, "0x1", bytes.NewReader(b)), 400},
		"a long offset":    {g.patch("wk", id, "1"+strings.Repeat("0", 19), bytes.NewReader(b)), 400},
		"JSON":             {g.patch("wk", id, "0", bytes.NewReader(b), "Content-Type", "application/json"), 415},
		"no type":          {g.patch("wk", id, "0", bytes.NewReader(b), "Content-Type", ""), 415},
		"a parameter":      {g.patch("wk", id, "0", bytes.NewReader(b), "Content-Type", "application/octet-stream; charset=utf-8"), 415},
		"an encoding":      {g.patch("wk", id, "0", bytes.NewReader(b), "Content-Encoding", "gzip"), 415},
		"another upload":   {g.patch("wk", "u-01arz3ndektsv4rrffq69g5fav", "0", bytes.NewReader(b)), 404},
		"a path":           {g.patch("wk", "..%2F..%2Fjournal.db", "0", bytes.NewReader(b)), 404},
		"a long id":        {g.patch("wk", strings.Repeat("u", 65), "0", bytes.NewReader(b)), 400},
		"too much":         {g.patch("wk", id, "0", bytes.NewReader(append(b[:1000:1000], 'x'))), 413},
	} {
		if a := g.send(tc.req); a.status != tc.want {
			t.Errorf("%s: %s, want %d", name, a, tc.want)
		}
	}
	two := g.patch("wk", id, "0", bytes.NewReader(b))
	two.Header.Add("Upload-Offset", "0")
	if a := g.send(two); a.status != 400 {
		t.Errorf("two offsets: %s", a)
	}
	q := g.patch("wk", id, "0", bytes.NewReader(b))
	q.URL.RawQuery = "offset=0"
	if a := g.send(q); a.status != 400 {
		t.Errorf("a query: %s", a)
	}
	for path, want := range map[string]int{"/v1/plane/artifacts/..%2F..%2Fetc": 404, "/v1/plane/artifacts/" + wire.Digest(nil): 404} {
		if a := g.do(request{method: "GET", path: path, as: "wk"}); a.status != want {
			t.Errorf("%s: %s", path, a)
		}
	}
}

// What has come of a piece whose connection breaks is kept.
func TestUploadThatBreaks(t *testing.T) {
	y := newYard(t)
	g := withPlane(t, y, Limits{})
	b := random(200_000)
	up := y.begin(t, b)
	c := g.raw()
	if _, err := fmt.Fprintf(c, "PATCH /v1/plane/uploads/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nUpload-Offset: 0\r\nContent-Length: %d\r\n\r\n",
		up.ID, g.tokens["wk"], len(b)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b[:150_000]); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") || !strings.Contains(string(answer), "what had come is kept") {
		t.Errorf("answered %s, %v", answer, err)
	}
	var at UploadState
	if g.get("wk", "/v1/plane/uploads/"+string(up.ID), &at); at.Offset != 150_000 {
		t.Fatalf("it is at %+v", at)
	}
	if a := g.send(g.patch("wk", string(up.ID), "150000", bytes.NewReader(b[150_000:]))); a.status != 200 || !strings.Contains(string(a.body), `"done":true`) {
		t.Errorf("the rest: %s", a)
	}
}

// A client that sends nothing is not waited for, and holds up nobody.
func TestUploadThatStalls(t *testing.T) {
	y := newYard(t)
	g := withPlane(t, y, Limits{Read: 200 * time.Millisecond})
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		b := random(100_000)
		up := y.begin(t, b)
		r, w := io.Pipe()
		go func() { _, _ = w.Write(b[:70_000]) }() // and then no more
		client := g.client
		if protocol == "HTTP/1.1" {
			client = g.plain()
		}
		resp, err := client.Do(g.patch("wk", string(up.ID), "0", r))
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		a := g.read(resp)
		w.Close() // for which the transport waits
		resp.Body.Close()
		if resp.Proto != protocol || a.status != 400 || !strings.Contains(a.fault.Message, "what had come is kept") {
			t.Errorf("%s: %s %s", protocol, resp.Proto, a)
		}
		if got, err := y.Get(t.Context(), up.ID, "wk"); err != nil || got.Received == 0 || got.Received > 70_000 {
			t.Errorf("%s: %+v, %v", protocol, got, err)
		}
	}
}

// plain is a client that speaks HTTP/1.1.
func (g *gateway) plain() *http.Client {
	g.t.Helper()
	t := g.client.Transport.(*http.Transport).Clone()
	t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	g.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

// Pieces have places of their own, so that slow ones keep nobody else out.
func TestUploadsHaveALane(t *testing.T) {
	y := newYard(t)
	g := withPlane(t, y, Limits{Files: 1})
	b := random(1000)
	up := y.begin(t, b)
	r, w := io.Pipe()
	first := make(chan *http.Response, 1)
	go func() {
		resp, err := g.client.Do(g.patch("wk", string(up.ID), "0", r))
		if err != nil {
			t.Error(err)
		}
		first <- resp
	}()
	if _, err := w.Write(b[:500]); err != nil {
		t.Fatal(err)
	}
	other := y.begin(t, random(2000))
	for { // until the first has its place
		if a := g.send(g.patch("wk", string(other.ID), "7", bytes.NewReader(nil))); a.status == 503 && a.fault.Code == ops.Busy {
			break
		} else if a.fault.Code != ops.OutOfSequence {
			t.Fatalf("beside the first: %s", a)
		}
	}
	g.get("wk", "/v1/plane/uploads/"+string(other.ID), &UploadState{})
	w.Close()
	if resp := <-first; resp != nil {
		if a := g.read(resp); a.status != 200 {
			t.Errorf("the first: %s", a)
		}
		resp.Body.Close()
	}
}

func TestCollectRoute(t *testing.T) {
	g := open(t)
	g.keep("scout")
	var c service.ArtifactCollection
	g.ok(200, request{method: "POST", path: "/v1/artifacts/collect", as: "ada"}, &c)
	if c.Files != 0 || c.Uploads != 0 || c.Usage.Files != 2 {
		t.Errorf("collected %+v", c)
	}
	for _, by := range []ops.IdentityID{"scout", "mx", "other"} {
		if a := g.do(request{method: "POST", path: "/v1/artifacts/collect", as: by}); a.status != 403 {
			t.Errorf("%s collects: %s", by, a)
		}
	}
}

// A piece that is refused before it is read is not waited for without end.
func TestUploadThatIsRefusedAndStalls(t *testing.T) {
	y := newYard(t)
	g := withPlane(t, y, Limits{Read: 200 * time.Millisecond})
	up := y.begin(t, random(1000))
	c := g.raw()
	if _, err := fmt.Fprintf(c, "PATCH /v1/plane/uploads/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nUpload-Offset: 7\r\nContent-Length: 1000\r\n\r\n",
		up.ID, g.tokens["wk"]); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c) // until the server ends the connection
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 409") || !strings.Contains(string(answer), `"expected":0`) {
		t.Errorf("answered %s, %v", answer, err)
	}
}
