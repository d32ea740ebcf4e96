package timers

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // for machines that have no zones of their own

	"github.com/robfig/cron/v3"

	"inband/ops"
)

// Bounds of @every.
const (
	// LeastOfAgents is the shortest interval of a timer that an agent makes.
	LeastOfAgents = time.Minute
	// LeastOfOperators is the shortest one that an operator makes.
	LeastOfOperators = time.Second
	// MostEvery is the longest.
	MostEvery = 366 * 24 * time.Hour
)

// schedule is when a timer is due: cron fields in a zone, or an interval.
type schedule struct {
	fields *cron.SpecSchedule // nil for an interval
	zone   *time.Location
	every  time.Duration
	from   time.Time // what an interval counts from
}

// fields reads cron expressions. Its own @every, prefixes for zones and seconds are not
// let through to it: it panics on "TZ=0", and drifts with every run of an interval.
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

const wantSchedule = "five cron fields (minute hour day month weekday), @daily or another descriptor, or @every DURATION"

func badSchedule(why string) *ops.Fault { return badParam("schedule", why, wantSchedule) }

func badParam(name, why, want string) *ops.Fault {
	return ops.Faultf(ops.InvalidParams, "%s %s; want %s", name, why, want).With("pointer", "/"+name).With("want", want)
}

// readSchedule reads an expression whose times are meant in zone. An interval counts
// from the moment from and is at least least.
func readSchedule(expr string, zone *time.Location, from time.Time, least time.Duration) (schedule, *ops.Fault) {
	expr = strings.TrimSpace(expr)
	if length, ok := strings.CutPrefix(expr, "@every"); ok {
		d, err := time.ParseDuration(strings.TrimSpace(length))
		switch {
		case err != nil || d%time.Second != 0:
			return schedule{}, badSchedule("has no interval of whole seconds after @every")
		case d < least || d > MostEvery:
			return schedule{}, badParam("schedule", "has an interval out of bounds", fmt.Sprintf("@every with %s to %s", least, MostEvery))
		}
		return schedule{every: d, from: from, zone: time.UTC}, nil
	}
	switch {
	case strings.Contains(expr, "="):
		return schedule{}, badSchedule("names a zone, which is the parameter zone's")
	case !strings.HasPrefix(expr, "@") && len(strings.Fields(expr)) != 5:
		return schedule{}, badSchedule(fmt.Sprintf("has %d fields", len(strings.Fields(expr))))
	}
	parsed, err := fields.Parse(expr)
	s, ok := parsed.(*cron.SpecSchedule)
	if err != nil || !ok {
		return schedule{}, badSchedule("cannot be read")
	}
	// A field of commas alone is one that nothing matches.
	if s.Minute == 0 || s.Hour == 0 || s.Dom == 0 || s.Month == 0 || s.Dow == 0 {
		return schedule{}, badSchedule("has an empty field")
	}
	s.Location = time.UTC // it is asked about wall clocks, which are written as UTC
	return schedule{fields: s, zone: zone}, nil
}

// readZone returns the zone of a name of IANA's, "" being UTC.
func readZone(name string) (*time.Location, *ops.Fault) {
	bad := badParam("zone", "is no zone that this gateway knows", "an IANA name such as Europe/Berlin, or UTC")
	switch first, _, nested := strings.Cut(name, "/"); {
	case name == "":
		return time.UTC, nil
	// What these mean depends on the machine, or counts leap seconds.
	case name == "Local", name == "localtime", name == "posixrules", nested && (first == "right" || first == "posix"):
		return nil, bad
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, bad
	}
	return zone, nil
}

// next returns the first moment after t at which s is due, the zero time if there is none
// within five years.
func (s schedule) next(t time.Time) time.Time {
	if s.fields == nil {
		if t.Before(s.from) {
			t = s.from
		}
		return s.from.Add((t.Sub(s.from)/s.every + 1) * s.every)
	}
	// The wall clock never stands before a moment that it has stood at or after, once
	// repeated times are taken for their first: so the matches up to t's own wall clock
	// are not after t, and the first later one that is, is the next.
	for w := s.fields.Next(wall(t, s.zone)); !w.IsZero(); w = s.fields.Next(w) {
		if m := moment(w, s.zone); m.After(t) {
			return m
		}
	}
	return time.Time{}
}

// wall is what a clock in zone shows at t, written as if it were UTC.
func wall(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// moment is when a clock in zone shows w: the first time that it does, or the end of the
// jump in which it is skipped.
func moment(w time.Time, zone *time.Location) time.Time {
	const widest = 26 * time.Hour // more than any zone is off, or jumps
	for at := w.Add(-widest); ; {
		local := at.In(zone)
		_, end := local.ZoneBounds()
		_, offset := local.Zone()
		m := w.Add(-time.Duration(offset) * time.Second)
		switch {
		case m.Before(at): // the jump to here has skipped it
			return at.UTC()
		case end.IsZero() || m.Before(end):
			return m
		}
		at = end
	}
}

// Bounds of what is looked at after a time without a gateway.
const (
	// MaxCatchUp is how many missed occurrences the policy "all" runs.
	MaxCatchUp = 32
	// maxCounted is up to where those that were missed are counted.
	maxCounted = 10_000
)

// upTo returns the last MaxCatchUp times at which s is due from first, which is one of
// them, to end, and how many there are before those, counted to maxCounted.
func (s schedule) upTo(first, end time.Time) (before int64, last []time.Time) {
	if s.fields == nil {
		n := int64(end.Sub(first)/s.every) + 1
		for i := max(0, n-MaxCatchUp); i < n; i++ {
			last = append(last, first.Add(time.Duration(i)*s.every))
		}
		return min(max(0, n-MaxCatchUp), maxCounted), last
	}
	// Looking back twice as far each time finds the last ones without meeting all others.
	for back := time.Hour; ; back *= 2 {
		from := end.Add(-back)
		last = last[:0]
		t := first
		if from.After(first) {
			t = s.next(from)
		}
		for ; !t.IsZero() && !t.After(end); t = s.next(t) {
			last = append(last, t)
		}
		if len(last) >= MaxCatchUp || !from.After(first) {
			break
		}
	}
	last = last[max(0, len(last)-MaxCatchUp):]
	for t := first; before < maxCounted && t.Before(last[0]); t = s.next(t) {
		before++
	}
	return before, last
}
