package harvester

// A Finding is something that hid or broke a directive.
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
	12: "a quoting fence",
	13: "a think tag",
	14: "a comment",
	18: "a fence that closed inside a string",
	19: "a curl command that is no call",
}

// hide notes that something begins to hide at the given offset.
func (s *Scanner) hide(rule int, at int64) {
	s.hiding.rule, s.hiding.at = rule, at
}

// unhide notes that it ends.
func (s *Scanner) unhide(at int64) {
	if s.hiding.rule != 0 && s.config.Explain != nil {
		s.config.Explain(Finding{s.hiding.at, at, s.hiding.rule, hidings[s.hiding.rule]})
	}
	s.hiding.rule = 0
}

// breakAt counts the directive that stands open as broken, at the given
// offset.
func (s *Scanner) breakAt(at int64, rule int, what string) {
	s.broken++
	if s.config.Explain != nil {
		s.config.Explain(Finding{s.start, at, rule, what})
	}
}
