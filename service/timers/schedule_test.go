package timers

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"inband/ops"
)

func must(t testing.TB, expr, zone string, from time.Time) schedule {
	t.Helper()
	z, fault := readZone(zone)
	if fault != nil {
		t.Fatal(fault)
	}
	s, fault := readSchedule(expr, z, from, time.Second)
	if fault != nil {
		t.Fatalf("%s: %v", expr, fault)
	}
	return s
}

func at(t testing.TB, s string) time.Time {
	t.Helper()
	m, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReadSchedule(t *testing.T) {
	for _, c := range []struct {
		expr  string
		least time.Duration
		says  string // empty if it is accepted
	}{
		{"0 7 * * *", 0, ""}, {"*/5 9-17 * * mon-fri", 0, ""}, {"0 0 1,15 * *", 0, ""}, {"0 12 29 2 *", 0, ""}, {"@daily", 0, ""}, {"@hourly", 0, ""}, {" @weekly ", 0, ""},
		{"0 0 ? * *", 0, ""}, {"5/10 * * * *", 0, ""},
		{"@every 90s", time.Second, ""}, {"@every 1h30m", time.Minute, ""}, {"@every 60s", time.Minute, ""}, {"@every 8784h", time.Minute, ""},
		{"@every 59s", time.Minute, "out of bounds"}, {"@every 8785h", time.Minute, "out of bounds"}, {"@every 0s", time.Second, "out of bounds"}, {"@every -1h", time.Second, "out of bounds"},
		{"@every 1500ms", time.Second, "whole seconds"}, {"@every", time.Second, "whole seconds"}, {"@every soon", time.Second, "whole seconds"}, {"@every 99999999999h", time.Second, "whole seconds"},
		{"", 0, "has 0 fields"}, {"* * * *", 0, "has 4 fields"}, {"0 0 7 * * *", 0, "has 6 fields"}, {"7", 0, "has 1 fields"},
		{"TZ=0", 0, "names a zone"}, {"TZ=Europe/Berlin 0 7 * * *", 0, "names a zone"}, {"CRON_TZ=UTC @daily", 0, "names a zone"}, {"TZ=", 0, "names a zone"}, {"CRON_TZ=x", 0, "names a zone"},
		{"@reboot", 0, "cannot be read"}, {"@", 0, "cannot be read"}, {"60 * * * *", 0, "cannot be read"}, {"* 24 * * *", 0, "cannot be read"}, {"* * 0 * *", 0, "cannot be read"},
		{"* * * 13 *", 0, "cannot be read"}, {"* * * * 7", 0, "cannot be read"}, {"5-1 * * * *", 0, "cannot be read"}, {"*/0 * * * *", 0, "cannot be read"}, {"1-2-3 * * * *", 0, "cannot be read"},
		{"a b c d e", 0, "cannot be read"}, {"-1 * * * *", 0, "cannot be read"}, {", * * * *", 0, "empty field"}, {"* * ,, * *", 0, "empty field"},
	} {
		_, fault := readSchedule(c.expr, time.UTC, time.Time{}, c.least)
		if (fault == nil) != (c.says == "") || fault != nil && !strings.Contains(fault.Message, c.says) {
			t.Errorf("%q: got %v, want %q", c.expr, fault, c.says)
		}
		if fault != nil && (fault.Code != ops.InvalidParams || fault.Details["pointer"] != "/schedule" || fault.Details["want"] == "") {
			t.Errorf("%q: a fault without help: %+v", c.expr, fault)
		}
	}
}

func TestReadZone(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "UTC": true, "Europe/Berlin": true, "Etc/GMT+5": true, "America/Argentina/Buenos_Aires": true,
		"Local": false, "localtime": false, "posixrules": false, "right/Europe/Berlin": false, "posix/UTC": false, "Europe": false, "Europe/Nowhere": false, "../etc/passwd": false, "europe berlin": false,
	} {
		if _, fault := readZone(name); (fault == nil) != ok {
			t.Errorf("zone %q: got %v, want accepted %t", name, fault, ok)
		}
	}
}

// What is never due has no next time, and finding that out is bounded.
func TestNever(t *testing.T) {
	for _, expr := range []string{"0 0 30 2 *", "0 0 31 2,4,6,9,11 *"} {
		if next := must(t, expr, "", time.Time{}).next(at(t, "2026-11-30T12:00:00Z")); !next.IsZero() {
			t.Errorf("%s is due at %s", expr, next)
		}
	}
	if next := must(t, "0 0 29 2 *", "", time.Time{}).next(at(t, "2026-11-30T12:00:00Z")); next != at(t, "2028-02-29T00:00:00Z") {
		t.Errorf("29 February: %s", next)
	}
}

// The days on which clocks are changed, by name.
func TestDaylight(t *testing.T) {
	for _, c := range []struct {
		expr, zone, after string
		want              []string
	}{
		// 29 March 2026: 02:00 to 03:00 does not exist. 25 October: 02:00 to 03:00 comes twice.
		{"30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", []string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", []string{"2026-10-26T01:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", []string{"2026-10-26T01:30:00Z"}}, // in the second pass
		{"*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:20:00Z"}},
		{"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"}},
		{"0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"}},
		{"30 2,3 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		// Half an hour.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T20:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-03T20:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		// Midnight does not exist.
		{"0 0 * * *", "Africa/Cairo", "2026-04-23T00:00:00Z", []string{"2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"}},
		// Samoa went without 30 December 2011, and has had no such days for long.
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", []string{"2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},
		{"0 2 * * *", "Pacific/Apia", "2026-04-03T20:00:00Z", []string{"2026-04-04T13:00:00Z", "2026-04-05T13:00:00Z"}},
	} {
		s, now := must(t, c.expr, c.zone, time.Time{}), at(t, c.after)
		for _, want := range c.want {
			if now = s.next(now); now != at(t, want) {
				t.Errorf("%s in %s after %s: got %s, want %s", c.expr, c.zone, c.after, now.Format(time.RFC3339), want)
				break
			}
		}
	}
}

// In every zone, around every change of its clocks from 2026 to 2028, what is due is what
// the written rule says: computed here by looking at each minute.
func TestEveryChange(t *testing.T) {
	names, err := os.ReadFile("testdata/zones.txt")
	if err != nil {
		t.Fatal(err)
	}
	from, to := at(t, "2026-01-01T00:00:00Z"), at(t, "2029-01-01T00:00:00Z")
	exprs := []string{"*/15 * * * *", "30 2 * * *", "0 0 * * *", "59 23 * * *", "7 0-4/2 * * *", "45 1,2,3 * * 0", "0 0 1 * *"}
	seen, changes, zones := map[string]bool{}, 0, 0
	for name := range strings.FieldsSeq(string(names)) {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		zones++
		for cursor := from; ; {
			_, end := cursor.In(zone).ZoneBounds()
			if end.IsZero() || end.After(to) {
				break
			}
			cursor = end
			_, before := end.Add(-time.Second).In(zone).Zone()
			_, after := end.In(zone).Zone()
			key := end.UTC().String() + time.Duration(before).String() + time.Duration(after).String()
			if seen[key] || before == after {
				continue // another zone has the same change, or its name alone changes
			}
			seen[key] = true
			changes++
			for _, expr := range exprs {
				checkChange(t, expr, name, zone, end.UTC())
			}
		}
	}
	if zones < 400 || changes < 50 {
		t.Errorf("looked at %d changes in %d zones, which is too few to mean anything", changes, zones)
	}
}

func checkChange(t *testing.T, expr, name string, zone *time.Location, change time.Time) {
	t.Helper()
	s := must(t, expr, name, time.Time{})
	start, end := change.Add(-6*time.Hour), change.Add(6*time.Hour)
	first := map[time.Time]time.Time{} // when the wall clock shows something first
	var shown []time.Time              // the moments of the window
	for m := start.Add(-5 * time.Hour); m.Before(end.Add(5 * time.Hour)); m = m.Add(time.Minute) {
		y, mo, d := m.In(zone).Date()
		h, mi, _ := m.In(zone).Clock()
		w := time.Date(y, mo, d, h, mi, 0, 0, time.UTC)
		if _, ok := first[w]; !ok {
			first[w] = m
		}
		shown = append(shown, m)
	}
	var want []time.Time
	lowest := wall(start, zone).Add(-4 * time.Hour)
	for w := lowest; w.Before(wall(end, zone).Add(4 * time.Hour)); w = w.Add(time.Minute) {
		if !matches(s, w) {
			continue
		}
		m, ok := first[w]
		if !ok { // skipped: the first moment whose wall clock is beyond it
			i := slices.IndexFunc(shown, func(m time.Time) bool { return wall(m, zone).After(w) })
			m = shown[i]
		}
		if m.After(start) && !m.After(end) {
			want = append(want, m)
		}
	}
	slices.SortFunc(want, time.Time.Compare)
	want = slices.CompactFunc(want, time.Time.Equal)
	var got []time.Time
	for m := s.next(start); !m.IsZero() && !m.After(end); m = s.next(m) {
		got = append(got, m)
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("%s in %s around %s:\ngot  %v\nwant %v", expr, name, change, got, want)
	}
}

// matches reports whether the fields of s hold a wall clock that shows w.
func matches(s schedule, w time.Time) bool {
	const star = 1 << 63
	f := s.fields
	dom, dow := f.Dom>>w.Day()&1 == 1, f.Dow>>w.Weekday()&1 == 1
	day := dom && dow
	if (f.Dom|f.Dow)&star == 0 {
		day = dom || dow
	}
	return day && f.Month>>w.Month()&1 == 1 && f.Hour>>w.Hour()&1 == 1 && f.Minute>>w.Minute()&1 == 1
}

func TestEvery(t *testing.T) {
	from := at(t, "2026-11-30T12:00:30Z")
	s := must(t, "@every 90m", "Europe/Berlin", from)
	for _, c := range []struct{ after, want string }{
		{"2026-11-30T12:00:30Z", "2026-11-30T13:30:30Z"},
		{"2026-11-30T13:30:29Z", "2026-11-30T13:30:30Z"},
		{"2026-11-30T13:30:30Z", "2026-11-30T15:00:30Z"},
		{"2026-11-30T11:00:00Z", "2026-11-30T13:30:30Z"}, // before it was made
		{"2027-11-30T12:00:30Z", "2027-11-30T13:30:30Z"},
	} {
		if got := s.next(at(t, c.after)); got != at(t, c.want) {
			t.Errorf("after %s: got %s, want %s", c.after, got.Format(time.RFC3339), c.want)
		}
	}
}

func TestUpTo(t *testing.T) {
	first := at(t, "2026-01-01T00:00:00Z")
	for _, c := range []struct {
		expr, end string
		before    int64
		last      int
		from      string // the first of the last
	}{
		{"* * * * *", "2026-01-01T00:00:00Z", 0, 1, "2026-01-01T00:00:00Z"},
		{"* * * * *", "2026-01-01T00:10:30Z", 0, 11, "2026-01-01T00:00:00Z"},
		{"* * * * *", "2026-01-01T01:00:00Z", 29, 32, "2026-01-01T00:29:00Z"},
		{"* * * * *", "2026-12-31T00:00:00Z", maxCounted, 32, "2026-12-30T23:29:00Z"},
		{"0 0 * * *", "2026-12-31T12:00:00Z", 333, 32, "2026-11-30T00:00:00Z"},
		{"0 0 1 1 *", "2029-12-31T12:00:00Z", 0, 4, "2026-01-01T00:00:00Z"},
		{"@every 1m", "2026-01-01T00:10:30Z", 0, 11, "2026-01-01T00:00:00Z"},
		{"@every 1m", "2026-01-01T01:00:00Z", 29, 32, "2026-01-01T00:29:00Z"},
		{"@every 1s", "2026-12-31T00:00:00Z", maxCounted, 32, "2026-12-30T23:59:29Z"},
	} {
		before, last := must(t, c.expr, "", first).upTo(first, at(t, c.end))
		if before != c.before || len(last) != c.last || last[0] != at(t, c.from) || last[len(last)-1].After(at(t, c.end)) {
			t.Errorf("%s to %s: %d before, %d from %v; want %d, %d from %s", c.expr, c.end, before, len(last), last[0], c.before, c.last, c.from)
		}
	}
}

// No expression panics, next never stands still, and what is due is due again when asked.
func FuzzSchedule(f *testing.F) {
	for _, expr := range []string{"* * * * *", "TZ=0", "CRON_TZ=0 0 0 * * *", "@every 1h", "@daily", "0 0 30 2 *", "*/9223372036854775807 * * * *", "1-5/3 , * * *", "? ? ? ? ?", "\x00", "@every  1s"} {
		f.Add(expr, "Europe/Berlin", int64(1774744200))
		f.Add(expr, "Australia/Lord_Howe", int64(1791043200))
	}
	f.Fuzz(func(t *testing.T, expr, name string, unix int64) {
		if len(expr) > 128 || len(name) > 64 || unix < 0 || unix > 4102444800 {
			return
		}
		zone, fault := readZone(name)
		if fault != nil {
			return
		}
		now := time.Unix(unix, 0).UTC()
		s, fault := readSchedule(expr, zone, now, time.Second)
		if fault != nil {
			return
		}
		for range 5 {
			next := s.next(now)
			if next.IsZero() {
				return
			}
			if !next.After(now) || !s.next(next.Add(-time.Second)).Equal(next) {
				t.Fatalf("%q in %s after %s: %s, and a second before it %s", expr, name, now, next, s.next(next.Add(-time.Second)))
			}
			now = next
		}
	})
}
