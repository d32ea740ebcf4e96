package harvester

// A Finding is something that hid or broke a directive, or might have.
type Finding struct {
	Start, End int64  // its place in the reply
	Rule       int    // the grammar's rule that says so
	What       string // in a few words
}

// hidings names what hides, by rule.
var hidings = map[int]string{
	9:  "a quoted line",
	10: "inline code",
	11: "a bracket behind a backslash or a quotation mark",
	12: "a fence that quotes",
	13: "a think tag",
	14: "a comment",
	18: "a fence that closed inside a string",
	19: "a curl command that is no call",
}

// An explainer tells Config.Explain what hides and breaks. Of what hides it
// tells only where something is hidden: that is where a bracket opener stands,
// which it looks for by itself. Fences and curl commands it tells always.
type explainer struct {
	rule int   // of what hides now, or 0
	from int64 // where that began

	opener  header  // the one being read
	reading bool    // it is
	at      int64   // where it began
	before  int64   // the last one that began in an earlier piece, or -1
	openers []int64 // those that were completed in this piece
	masked  int64   // the last bracket that rule 11 hid, or -1
}

// look finds the bracket openers of the piece at hand, before it is read.
func (s *Scanner) look(p []byte) {
	e := &s.explainer
	if n := len(e.openers); n > 0 {
		e.before = e.openers[n-1]
	}
	e.openers = e.openers[:0]
	for i, c := range p {
		if e.reading {
			switch {
			case e.opener.opens(c):
				e.reading = false
				e.openers = append(e.openers, e.at)
				if e.at == e.masked {
					s.tell(e.at, e.at+1, 11) // hidden in an earlier piece
				}
			case e.opener.step(c) != unfinished:
				e.reading = false
			}
		}
		if c == '[' {
			e.reading, e.at = true, s.at(i)
			e.opener.reset()
		}
	}
}

// hides reports whether a bracket opener stands between the offsets.
func (e *explainer) hides(from, to int64) bool {
	if e.before >= from && e.before < to {
		return true
	}
	for _, at := range e.openers {
		if at >= from && at < to {
			return true
		}
	}
	return false
}

func (s *Scanner) tell(from, to int64, rule int) {
	s.config.Explain(Finding{from, to, rule, hidings[rule]})
}

// hide notes that something begins to hide at the given offset.
func (s *Scanner) hide(rule int, at int64) {
	s.explainer.rule, s.explainer.from = rule, at
}

// unhide notes that it ends.
func (s *Scanner) unhide(at int64) {
	e := &s.explainer
	if e.rule != 0 && s.config.Explain != nil && (e.rule == 12 || e.rule >= 18 || e.hides(e.from, at)) {
		s.tell(e.from, at, e.rule)
	}
	e.rule = 0
}

// unhidden notes that nothing was hidden after all.
func (s *Scanner) unhidden() { s.explainer.rule = 0 }

// mask notes that rule 11 hides the bracket at i.
func (s *Scanner) mask(i int) {
	if s.config.Explain == nil {
		return
	}
	s.explainer.masked = s.at(i)
	if s.explainer.hides(s.at(i), s.at(i+1)) {
		s.tell(s.at(i), s.at(i+1), 11)
	}
}

// breakAt counts the directive that stands open as broken, at the given
// offset.
func (s *Scanner) breakAt(at int64, rule int, what string) {
	s.broken++
	if s.config.Explain != nil {
		s.config.Explain(Finding{s.start, at, rule, what})
	}
}
