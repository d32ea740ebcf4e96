package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"inband/ops"
	"inband/service/plane/wire"
)

// Bounds of a request, so that a connection that says nothing is known in time.
const (
	askTimeout   = 10 * time.Second // of one attempt at anything but a poll or bytes
	bytesTimeout = 2 * time.Minute  // of one piece of an upload, or one fetch of a whole file per GiB
	maxAnswer    = 2 << 20          // bytes of an answer; a grant in its envelope is the longest
	uploadPiece  = 4 << 20          // bytes of one PATCH
)

// Client speaks the plane's routes of one gateway. Each method makes one attempt; what
// may be tried again is said by [Again]. It may be used from several goroutines.
type Client struct {
	base  string
	http  *http.Client
	token atomic.Pointer[string]
}

// NewClient returns a client of the gateway at base, https://HOST:PORT. t says what is
// trusted and how long a connection may take; it is not followed to another address.
func NewClient(base string, t http.RoundTripper) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), http: &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// SetToken gives the bearer token of a boot to every request from now on.
func (c *Client) SetToken(token string) { c.token.Store(&token) }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Enrol presents a key with its one-time token.
func (c *Client) Enrol(ctx context.Context, envelope []byte) (e wire.Enrolled, err error) {
	return e, c.ask(ctx, http.MethodPost, "/v1/plane/enrol", envelope, &e)
}

// Challenge gets what the next boot's message must hold.
func (c *Client) Challenge(ctx context.Context, worker ops.IdentityID) (string, error) {
	var answer struct {
		Challenge string `json:"challenge"`
	}
	err := c.ask(ctx, http.MethodGet, "/v1/plane/challenge?worker="+url.QueryEscape(string(worker)), nil, &answer)
	if err == nil && answer.Challenge == "" {
		err = &strangeAnswer{what: "an answer without a challenge"}
	}
	return answer.Challenge, err
}

// Begin tells the plane of a boot.
func (c *Client) Begin(ctx context.Context, envelope []byte) (s wire.Session, err error) {
	return s, c.ask(ctx, http.MethodPost, "/v1/plane/boots", envelope, &s)
}

// Poll asks for a grant and returns its envelope, or nil if none came in the time that
// q gives.
func (c *Client) Poll(ctx context.Context, q wire.Poll) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.WaitMS)*time.Millisecond+askTimeout)
	defer cancel()
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, "/v1/plane/poll", "application/json", nil, bytes.NewReader(body), maxAnswer)
}

// Callback hands in a message of a run or verification.
func (c *Client) Callback(ctx context.Context, envelope []byte) (a wire.Ack, err error) {
	return a, c.ask(ctx, http.MethodPost, "/v1/plane/callbacks", envelope, &a)
}

// Upload announces bytes.
func (c *Client) Upload(ctx context.Context, envelope []byte) (u wire.Uploading, err error) {
	return u, c.ask(ctx, http.MethodPost, "/v1/plane/uploads", envelope, &u)
}

// Uploaded says how much of an upload is durable.
func (c *Client) Uploaded(ctx context.Context, upload string) (u wire.Uploading, err error) {
	return u, c.ask(ctx, http.MethodGet, "/v1/plane/uploads/"+url.PathEscape(upload), nil, &u)
}

// Append sends the bytes of an upload that follow offset, or some of them.
func (c *Client) Append(ctx context.Context, upload string, offset int64, piece []byte) (u wire.Uploading, err error) {
	ctx, cancel := context.WithTimeout(ctx, bytesTimeout)
	defer cancel()
	h := http.Header{"Upload-Offset": {strconv.FormatInt(offset, 10)}}
	b, err := c.send(ctx, http.MethodPatch, "/v1/plane/uploads/"+url.PathEscape(upload), "application/octet-stream", h, bytes.NewReader(piece), maxAnswer)
	if err != nil {
		return u, err
	}
	return u, read(b, &u)
}

// Fetch writes the bytes with this digest to w and returns how many came, at most most.
// The caller compares the digest.
func (c *Client) Fetch(ctx context.Context, digest string, w io.Writer, most int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, bytesTimeout+time.Duration(most>>30)*bytesTimeout)
	defer cancel()
	resp, err := c.open(ctx, http.MethodGet, "/v1/plane/artifacts/"+url.PathEscape(digest), "", nil, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	own := &ownError{w: w}
	n, err := io.Copy(own, io.LimitReader(resp.Body, most+1))
	if own.err != nil {
		return n, own.err
	}
	if err != nil {
		return n, &unreachable{err}
	}
	if n > most {
		return n, &strangeAnswer{what: fmt.Sprintf("more than the %d bytes that %s has", most, digest)}
	}
	return n, nil
}

// ownError tells an error of w from one of whatever is copied to it.
type ownError struct {
	w   io.Writer
	err error
}

func (o *ownError) Write(b []byte) (n int, err error) {
	n, o.err = o.w.Write(b)
	return n, o.err
}

// ask makes one attempt with a JSON body and reads the answer into v.
func (c *Client) ask(ctx context.Context, method, path string, body []byte, v any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var r io.Reader
	contentType := ""
	if body != nil {
		r, contentType = bytes.NewReader(body), "application/json"
	}
	b, err := c.send(ctx, method, path, contentType, nil, r, maxAnswer)
	if err != nil {
		return err
	}
	return read(b, v)
}

// read reads an answer. What this version does not know in it is left alone.
func read(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return &strangeAnswer{what: "an answer that is not of this protocol"}
	}
	return nil
}

// send makes one attempt and returns the answer's body, nil if it has none.
func (c *Client) send(ctx context.Context, method, path, contentType string, h http.Header, body io.Reader, most int64) ([]byte, error) {
	resp, err := c.open(ctx, method, path, contentType, h, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, &unreachable{err}
	}
	if int64(len(b)) > most {
		return nil, &strangeAnswer{what: "an answer that is too long"}
	}
	return b, nil
}

// open makes one attempt; an answer that is not a success is an error.
func (c *Client) open(ctx context.Context, method, path, contentType string, h http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range h {
		req.Header[name] = values
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if t := c.token.Load(); t != nil && *t != "" {
		req.Header.Set("Authorization", "Bearer "+*t)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &unreachable{err}
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var f ops.Fault
	if json.Unmarshal(b, &f) == nil && f.Code != "" {
		return nil, &f
	}
	return nil, &strangeAnswer{status: resp.StatusCode, what: "an answer that is not a gateway's"}
}

// unreachable is an attempt of which nobody knows whether it arrived.
type unreachable struct{ err error }

func (e *unreachable) Error() string { return "the gateway cannot be reached: " + e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }

// strangeAnswer is what a proxy says, or a gateway that is none.
type strangeAnswer struct {
	status int
	what   string
}

func (e *strangeAnswer) Error() string {
	if e.status == 0 {
		return e.what
	}
	return fmt.Sprintf("%s: %d %s", e.what, e.status, http.StatusText(e.status))
}

// Again reports whether what ended with err may be sent again, as it is. A fault says so
// itself. What no gateway has said may be: it came from something in between. An error of
// this machine may not.
func Again(err error) bool {
	var f *ops.Fault
	if errors.As(err, &f) {
		final, _ := f.Details["final"].(bool)
		return f.Retryable && !final
	}
	var lost *unreachable
	var strange *strangeAnswer
	return errors.As(err, &lost) || errors.As(err, &strange)
}

// has reports whether err is a fault with one of the codes.
func has(err error, codes ...ops.Code) bool {
	var f *ops.Fault
	if !errors.As(err, &f) {
		return false
	}
	for _, code := range codes {
		if f.Code == code {
			return true
		}
	}
	return false
}

// backoff spreads attempts: from first on, doubling to most, each with its upper half at
// random, so that workers that were cut off together do not come back together.
type backoff struct {
	first, most time.Duration
	next        time.Duration
}

// wait waits for the next attempt, longer if err says so, and not when ctx ends.
func (b *backoff) wait(ctx context.Context, err error) error {
	if b.next < b.first {
		b.next = b.first
	}
	d := b.next/2 + rand.N(b.next/2+1)
	b.next = min(2*b.next, b.most)
	var f *ops.Fault
	if errors.As(err, &f) {
		if s, ok := f.Details["retry_after"].(float64); ok && s > 0 {
			d = max(d, min(time.Duration(s*float64(time.Second)), b.most))
		}
	}
	return sleep(ctx, d)
}

// reset says that an attempt has succeeded.
func (b *backoff) reset() { b.next = 0 }

// sleep waits for d or for ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
