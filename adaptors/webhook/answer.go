package webhook

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"inband/service/threads"
)

// answer is what the bridge answers.
type answer struct {
	OK         *bool   `json:"ok"`
	Error      string  `json:"error"`
	RetryAfter float64 `json:"retry_after"` // seconds
	ID         string  `json:"id"`
	Thread     string  `json:"thread"`
	Room       string  `json:"room"`
	Found      *bool   `json:"found"`
}

// status is what an HTTP status says of a post, nil for a 2xx.
func status(resp *http.Response, body []byte, now time.Time) error {
	code := resp.StatusCode
	e := &threads.PostError{Kind: threads.Unsure, Err: fmt.Errorf("the bridge answered %d", code)}
	switch {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusTooManyRequests:
		e.Kind, e.Wide = threads.RateLimit, true
		e.After = retryAfter(resp.Header.Get("Retry-After"), now)
	case code == http.StatusNotFound, code == http.StatusGone:
		e.Kind = threads.RootGone
	case code == http.StatusConflict, code == http.StatusLocked:
		e.Kind = threads.Closed
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusMisdirectedRequest, code == http.StatusTooEarly:
		// The bridge did not even look at it; other secrets or a clock set right will help.
		e.Kind = threads.Unsent
	case code == http.StatusRequestTimeout:
	case code >= 400 && code < 500:
		e.Kind = threads.RefusedPost
	case code >= 300 && code < 400:
		e.Err = fmt.Errorf("the bridge answered %d; redirects are not followed, give the last URL", code)
	}
	var said answer
	if json.Unmarshal(body, &said) == nil && said.Error != "" {
		e.Err = fmt.Errorf("%w: %s", e.Err, word(said.Error))
	}
	return e
}

// Bounds of how long a bridge may have us wait.
const (
	minAfter = time.Second
	maxAfter = time.Hour
)

// retryAfter reads the header (RFC 9110, 10.2.3).
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil && n >= 0 {
		return clampAfter(float64(n))
	}
	if t, err := http.ParseTime(s); err == nil {
		return clampAfter(t.Sub(now).Seconds())
	}
	return minAfter
}

func clampAfter(seconds float64) time.Duration {
	if !(seconds < maxAfter.Seconds()) {
		return maxAfter
	}
	return max(minAfter, time.Duration(seconds*float64(time.Second)))
}

// words are the errors of a bridge that say more than that it refuses a post.
var words = map[string]threads.Failure{
	"rate_limited": threads.RateLimit, "ratelimited": threads.RateLimit, "too_many_requests": threads.RateLimit,
	"root_gone": threads.RootGone, "thread_not_found": threads.RootGone, "message_not_found": threads.RootGone,
	"closed": threads.Closed, "thread_closed": threads.Closed, "is_archived": threads.Closed, "locked": threads.Closed,
	"unavailable": threads.Unsent, "internal_error": threads.Unsure,
}

// inside is what an error in a 2xx says of a post.
func inside(got *answer) error {
	kind, ok := words[got.Error]
	if !ok {
		kind = threads.RefusedPost
	}
	e := &threads.PostError{Kind: kind, Err: fmt.Errorf("the bridge says: %s", word(got.Error))}
	if kind == threads.RateLimit {
		e.Wide, e.After = true, clampAfter(got.RetryAfter)
	}
	return e
}

// word is an error of a bridge if it is one short plain word, which can be repeated in a
// log.
func word(s string) string {
	if s == "" || len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool {
		return !(r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) {
		return "something that is no plain word"
	}
	return s
}
