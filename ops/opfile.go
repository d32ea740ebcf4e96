package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Bounds on op files.
const (
	// MaxFile is the longest op file, in bytes.
	MaxFile = 1 << 20
	// MaxOutput is the most output an op may ask to keep, in bytes.
	MaxOutput = 4 << 20
	// DefaultOutput is what is kept when the op file does not say.
	DefaultOutput = 256 << 10
	// DefaultFSize is the largest file, in bytes, that an op without side effects may write
	// when its file does not say.
	DefaultFSize = 64 << 20
	// MaxPublish is how many files of its private folder an op may publish.
	MaxPublish = 16
	// MinTimeout and MaxTimeout bound an op's timeout.
	MinTimeout = time.Millisecond
	MaxTimeout = 10 * time.Minute
)

// File is an op file that has passed every check.
type File struct {
	Name     string // as it was read, for messages
	Provider string
	Title    string
	// Enabled is false where the file says so. Such a file is checked like any other and
	// offers nothing.
	Enabled bool
	Ops     []Definition // what the file offers, in its order; nothing if it is not enabled
	Off     []Definition // what it would offer if it were; nothing if it is
}

// Definition is an op and the place where it is defined.
type Definition struct {
	Op
	File string
	Line int
}

// FileError is one thing that is wrong with an op file.
type FileError struct {
	File    string
	Line    int    // from 1
	Message string // what is wrong, and what to do
}

// Error returns "FILE:LINE: what, and what to do".
func (e *FileError) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

// FileErrors is everything that is wrong with the op files that were read, in
// the order of the files and their lines.
type FileErrors []*FileError

// Error returns the errors, one a line.
func (es FileErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single errors.
func (es FileErrors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// ReadDir reads every .yaml file of fsys, in the order of their names; it does
// not look into folders below. It returns the files and a nil error, or
// FileErrors with everything that is wrong with any of them: a folder with one
// bad file yields no ops. A name or an alias that two ops have is an error that
// names both places; those of files that are not enabled take no name from others.
func ReadDir(fsys fs.FS) ([]File, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("read the op folder: %w", err)
	}
	info, err := fs.Stat(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("read the op folder: %w", err)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return nil, FileErrors{{".", 1, "anybody may put an op file into the folder; chmod o-w it"}}
	}
	var files []File
	var all FileErrors
	for _, e := range entries {
		name := e.Name()
		ext := path.Ext(name)
		switch {
		case strings.HasPrefix(name, "."):
			continue
		case ext != ".yaml" && (strings.EqualFold(ext, ".yaml") || strings.EqualFold(ext, ".yml")):
			all = append(all, &FileError{name, 1, "the name does not end in .yaml, so it would not be read; rename it"})
			continue
		case ext != ".yaml":
			continue
		}
		data, problem := slurp(fsys, name)
		if problem != "" {
			all = append(all, &FileError{name, 1, problem})
			continue
		}
		f, err := ReadFile(name, data)
		var es FileErrors
		if errors.As(err, &es) {
			all = append(all, es...)
			continue
		}
		files = append(files, f)
	}
	all = append(all, duplicates(files)...)
	if len(all) > 0 {
		return nil, all
	}
	return files, nil
}

// slurp returns a file's bytes, or why it is not read.
func slurp(fsys fs.FS, name string) ([]byte, string) {
	info, err := fs.Stat(fsys, name) // first: to open a pipe would wait for a writer
	switch {
	case err != nil:
		return nil, "cannot be read: " + err.Error()
	case !info.Mode().IsRegular():
		return nil, "is not a regular file; put the op file itself here"
	case info.Mode().Perm()&0o002 != 0:
		return nil, "anybody may write to it; chmod o-w it"
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, "cannot be read: " + err.Error()
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, "cannot be read: " + err.Error()
	}
	return data, ""
}

// duplicates returns an error for each name that is given twice.
func duplicates(files []File) (errs FileErrors) {
	type place struct {
		file string
		line int
	}
	first := map[OpName]place{}
	for _, f := range files {
		for _, d := range f.Ops {
			for _, name := range append([]OpName{d.Name}, d.Aliases...) {
				if at, taken := first[name]; taken {
					errs = append(errs, &FileError{d.File, d.Line,
						fmt.Sprintf("the name %s is taken at %s:%d; choose another", name, at.file, at.line)})
					continue
				}
				first[name] = place{d.File, d.Line}
			}
		}
	}
	return errs
}

// ReadFile reads one op file. name is for messages. It returns the file and a
// nil error, or FileErrors.
//
// The reading is strict: what this version does not know or does not enforce is
// an error and never ignored. The examples are run, and each parameter is tried
// with values that no op may accept.
func ReadFile(name string, data []byte) (File, error) {
	r := &fileReader{file: name}
	f := File{Name: name, Enabled: true}
	root := readYAML(data, r.bad)
	if root != nil {
		r.top(root, &f)
	}
	if len(r.errs) == 0 {
		r.errs = duplicates([]File{f})
	}
	if len(r.errs) > 0 {
		slices.SortStableFunc(r.errs, func(a, b *FileError) int { return a.Line - b.Line })
		return File{}, r.errs
	}
	if !f.Enabled {
		f.Ops, f.Off = nil, f.Ops
	}
	return f, nil
}

// fileReader turns the checked tree of one file into ops.
type fileReader struct {
	file    string
	errs    FileErrors
	hostile []hostile // once a parameter is tried
}

func (r *fileReader) bad(line int, format string, args ...any) {
	const most = 100 // a file with more is not corrected by reading them all
	if len(r.errs) < most {
		r.errs = append(r.errs, &FileError{r.file, line, fmt.Sprintf(format, args...)})
	}
}

// fields are the keys that a mapping may have, each with what reads its value.
type fields map[string]func(*node)

// mapping reads n as a mapping with the given keys, of which those named must be
// there.
func (r *fileReader) mapping(n *node, what string, known fields, required ...string) {
	if n.kind != mappingNode {
		r.want(n, what, "a mapping of "+strings.Join(sorted(known), ", "))
		return
	}
	for _, e := range n.entries {
		read, ok := known[e.key]
		switch {
		case ok:
			read(e.value)
		default:
			hint := "the keys here are " + strings.Join(sorted(known), ", ")
			for k := range known {
				if strings.EqualFold(k, e.key) {
					hint = "write " + k
				}
			}
			r.bad(e.line, "unknown key %q in %s; %s", clip(e.key), what, hint)
		}
	}
	for _, key := range required {
		if n.find(key) == nil {
			r.bad(n.line, "%s has no %s; add it", what, key)
		}
	}
}

func sorted(known fields) []string {
	var names []string
	for k := range known {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

func (r *fileReader) want(n *node, what, want string) {
	if n.kind != brokenNode {
		r.bad(n.line, "%s is %s; want %s", what, n.describe(), want)
	}
}

// text reads a string of one line.
func (r *fileReader) text(n *node, what string, most int) string {
	if n.kind != stringNode {
		r.want(n, what, "a string (quote it)")
		return ""
	}
	switch {
	case len(n.text) > most:
		r.bad(n.line, "%s is longer than %d bytes; shorten it", what, most)
	case strings.ContainsFunc(n.text, unicode.IsControl):
		r.bad(n.line, "%s holds a control character; remove it", what)
	}
	return n.text
}

func (r *fileReader) bool(n *node, what string) bool {
	if n.kind != boolNode {
		r.want(n, what, "true or false")
	}
	return n.text == "true"
}

// list reads a sequence of strings.
func (r *fileReader) list(n *node, what string, most, mostEach int) []string {
	if n.kind != sequenceNode {
		r.want(n, what, "a list of strings")
		return nil
	}
	if len(n.items) > most {
		r.bad(n.line, "%s has more than %d entries; shorten it", what, most)
		return nil
	}
	var out []string
	for _, item := range n.items {
		if s := r.text(item, "an entry of "+what, mostEach); item.kind == stringNode {
			out = append(out, s)
		}
	}
	return out
}

var providerName = lazily(`^[a-z][a-z0-9-]{0,63}$`)

func (r *fileReader) top(root *node, f *File) {
	var opsNode *node
	r.mapping(root, "the file", fields{
		"provider": func(n *node) {
			f.Provider = r.text(n, "provider", 64)
			switch {
			case n.kind != stringNode:
			case !providerName().MatchString(f.Provider):
				r.bad(n.line, "provider %q: want lower-case letters, digits and -, beginning with a letter", f.Provider)
			case f.Provider == NativeProvider:
				r.bad(n.line, "provider %s is the gateway's own; choose another", NativeProvider)
			}
		},
		"title":   func(n *node) { f.Title = r.text(n, "title", 200) },
		"enabled": func(n *node) { f.Enabled = r.bool(n, "enabled") },
		"ops":     func(n *node) { opsNode = n },
	}, "provider", "ops")
	if opsNode == nil {
		return
	}
	if opsNode.kind != mappingNode || len(opsNode.entries) == 0 {
		r.want(opsNode, "ops", "a mapping with an op under each name")
		return
	}
	for _, e := range opsNode.entries {
		before := len(r.errs)
		op := r.op(e, f.Provider)
		if len(r.errs) == before {
			r.prove(e, &op)
		}
		f.Ops = append(f.Ops, Definition{Op: op, File: r.file, Line: e.line})
	}
}

var mediaType = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*$`)

func (r *fileReader) op(e entry, provider string) Op {
	op := Op{Name: OpName(e.key), Provider: provider, Timeout: DefaultTimeout,
		Command: &Command{OutputMax: DefaultOutput, Kind: "text/plain"}}
	if !op.Name.Valid() {
		r.bad(e.line, "op name %q: want a letter or _, then letters, digits or any of _.:/-, at most %d bytes", clip(e.key), MaxNameLen)
	}
	what := "op " + clip(e.key)
	var params, argv, paths, network, box, publish *node
	var end ending
	r.mapping(e.value, what, fields{
		"summary": func(n *node) {
			if op.Summary = r.text(n, "summary", 300); n.kind == stringNode && op.Summary == "" {
				r.bad(n.line, "summary is empty; say in a sentence what the op does")
			}
		},
		"side_effecting": func(n *node) { op.SideEffecting = r.bool(n, "side_effecting") },
		"params":         func(n *node) { params = n },
		"argv":           func(n *node) { argv = n },
		"end_of_options": func(n *node) { end = r.ending(n) },
		"timeout":        func(n *node) { op.Timeout = r.timeout(n) },
		"output": func(n *node) {
			r.mapping(n, "output", fields{
				"max": func(n *node) { op.Command.OutputMax = r.size(n, "max", MaxOutput) },
				"kind": func(n *node) {
					if op.Command.Kind = r.text(n, "kind", 100); n.kind == stringNode && !mediaType.MatchString(op.Command.Kind) {
						r.bad(n.line, "kind %q: want a media type such as text/plain", clip(op.Command.Kind))
					}
				},
			})
		},
		"limits":  func(n *node) { op.Command.Limits = r.limits(n) },
		"fs":      func(n *node) { paths, op.Command.FS = n, r.paths(n) },
		"network": func(n *node) { network, op.Command.Network = n, r.network(n) },
		"sandbox": func(n *node) { box, op.Command.Unconfined, op.Command.Require = n, n.text == "none", r.sandbox(n) },
		"run_as": func(n *node) {
			if op.Command.RunAs = r.text(n, "run_as", 40); n.kind == stringNode && !userName().MatchString(op.Command.RunAs) {
				r.bad(n.line, "run_as %q: want the name of a user: a small letter or _, then small letters, digits, _ or -, at most 32", clip(op.Command.RunAs))
			}
		},
		"env": func(n *node) { op.Command.Env = r.env(n) },
		"sha256": func(n *node) {
			if op.Command.SHA256 = r.text(n, "sha256", 100); n.kind == stringNode && !sha256Hex().MatchString(op.Command.SHA256) {
				r.bad(n.line, "sha256 %q: want 64 hexadecimal digits, small letters, as sha256sum prints them", clip(op.Command.SHA256))
			}
		},
		"checks":  func(n *node) { op.Command.Checks = r.checks(n) },
		"publish": func(n *node) { publish, op.Command.Publish = n, r.publish(n) },
		"concurrency": func(n *node) {
			i := r.int(n, "concurrency")
			if op.Concurrency = int(i); n.kind == numberNode && (i < 1 || i > maxConcurrency) {
				r.bad(n.line, "concurrency %s: want 1 to %d", clip(n.text), maxConcurrency)
			}
		},
		"rate": func(n *node) { op.Rate = r.rate(n) },
		"aliases": func(n *node) {
			for _, a := range r.list(n, "aliases", 16, MaxNameLen) {
				if op.Aliases = append(op.Aliases, OpName(a)); !OpName(a).Valid() {
					r.bad(n.line, "alias %q: want the form of an op name", clip(a))
				}
			}
		},
		"catalog":  func(n *node) { op.Catalog = r.catalog(n) },
		"examples": func(n *node) { op.Examples = r.examples(n) },
	}, "summary", "side_effecting", "argv")
	if !op.SideEffecting && len(op.Command.FS.Write) > 0 {
		r.bad(paths.find("write").line, "an op without side effects may write to its private folder only; remove write, or say side_effecting: true")
	}
	if !op.SideEffecting && op.Command.FS.Metadata {
		r.bad(paths.find("metadata").line, "an op without side effects changes no mode, owner or times of files; remove metadata, or say side_effecting: true")
	}
	if !op.SideEffecting && (op.Command.Network == NetworkAny || op.Command.Network == NetworkUnix) {
		r.bad(network.line, "an op without side effects has no network; write none or netlink, or say side_effecting: true")
	}
	if op.Command.Unconfined {
		if !op.SideEffecting {
			r.bad(box.line, "nothing keeps an op outside the sandbox from having side effects; remove sandbox: none, or say side_effecting: true")
		}
		for _, n := range []*node{paths, network} {
			if n != nil {
				r.bad(n.line, "without a sandbox nothing enforces fs and network; remove it, or remove sandbox: none")
			}
		}
	}
	if size := op.Command.Limits.FSize; size != nil && *size == 0 && len(op.Command.Publish) > 0 {
		r.bad(publish.line, "with fsize: 0 the program can write no file to publish; raise it, or remove publish")
	}
	if params != nil {
		op.Params = r.params(params)
	}
	if argv != nil {
		op.Command.Argv = r.argv(argv, op.Params, end)
	}
	r.uses(&op, params, argv)
	return op
}

// uses complains about parameters that do not reach the process, or that it could not
// use.
func (r *fileReader) uses(op *Op, params, argv *node) {
	word := map[string]bool{}
	for _, a := range op.Command.Argv {
		word[a.Param] = true
	}
	input := ""
	for i := range op.Params {
		p, line := &op.Params[i], params.entries[i].line
		switch {
		case p.Type == "":
		case p.Stdin():
			if input != "" {
				r.bad(line, "the parameters %s and %s are both the standard input, and there is one; say as: otherwise, or remove one", clip(input), clip(p.Name))
			}
			input = p.Name
		case !word[p.Name] && argv != nil && argv.kind == sequenceNode:
			r.bad(line, "parameter %s is declared and not used in argv; use it or remove it", clip(p.Name))
		}
		// A folder may be one that the program only asks about, as df does, which needs
		// no right to read it.
		if p.Type == Path && p.As == AsArgument && p.Kind == KindFile && !op.Command.Unconfined && !op.Command.FS.holds(p.Root) {
			r.bad(line, "the program could not open the files of parameter %s; add %s to read of fs, or hand them over as: stdin", clip(p.Name), clip(p.Root))
		}
	}
	if input != "" && len(op.Command.Argv) > 0 {
		if why := Dispatches(op.Command.Argv, op.Params); why != "" {
			r.bad(argv.line, "%s, and what a caller supplies is its standard input; name the program itself", why)
		}
	}
}

// holds reports whether a process may read what is below folder.
func (p Paths) holds(folder string) bool {
	return slices.ContainsFunc(slices.Concat(p.Read, p.Write, p.Exec), func(open string) bool {
		return folder == open || strings.HasPrefix(folder, strings.TrimSuffix(open, "/")+"/")
	})
}

var (
	userName  = lazily(`^[a-z_][a-z0-9_-]{0,31}$`)
	sha256Hex = lazily(`^[0-9a-f]{64}$`)
	rateForm  = regexp.MustCompile(`^([1-9][0-9]{0,5})/([smh])$`)
)

// maxConcurrency is the largest number of executions at one time that an op may allow.
const maxConcurrency = 64

func (r *fileReader) rate(n *node) Rate {
	m := rateForm.FindStringSubmatch(r.text(n, "rate", 40))
	if m == nil {
		if n.kind == stringNode {
			r.bad(n.line, "rate %q: want a number in a second, a minute or an hour, such as 30/m", clip(n.text))
		}
		return Rate{}
	}
	count, _ := strconv.Atoi(m[1]) // at most six digits
	return Rate{Count: count, Per: map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[m[2]]}
}

// checks reads what must hold for a run to be a success. That it ended with exit code 0
// is among it unless the file says otherwise.
func (r *fileReader) checks(n *node) (checks []Check) {
	const most = 16
	if n.kind != sequenceNode || len(n.items) == 0 || len(n.items) > most {
		r.want(n, "checks", fmt.Sprintf("a list of 1 to %d checks, each {exit: CODES} or {stdout: PATTERN}", most))
		return nil
	}
	exits := 0
	for _, item := range n.items {
		var c Check
		r.mapping(item, "a check", fields{
			"exit": func(n *node) {
				exits++
				c.Exit = r.exitCodes(n)
			},
			"stdout": func(n *node) {
				c.Stdout = r.text(n, "stdout", MaxString)
				if _, err := regexp.Compile(c.Stdout); n.kind == stringNode && (err != nil || c.Stdout == "") {
					r.bad(n.line, "stdout %q: want a regular expression that is not empty (%v)", clip(c.Stdout), err)
				}
			},
		})
		if item.kind == mappingNode && len(item.entries) != 1 {
			r.bad(item.line, "a check has %d keys; want one of exit and stdout", len(item.entries))
		}
		checks = append(checks, c)
	}
	switch {
	case exits > 1:
		r.bad(n.line, "checks give the exit codes %d times; name all in one: {exit: [0, 1]}", exits)
	case exits == 0:
		checks = append([]Check{{Exit: []int{0}}}, checks...)
	}
	return checks
}

// publish reads the files of the private folder that are kept. An empty list is none.
func (r *fileReader) publish(n *node) (files []Publish) {
	if n.kind != sequenceNode || len(n.items) > MaxPublish {
		r.want(n, "publish", fmt.Sprintf("a list of up to %d files, each {file: PATH, kind: MEDIA/TYPE}", MaxPublish))
		return nil
	}
	for _, item := range n.items {
		var p Publish
		r.mapping(item, "a file of publish", fields{
			"file": func(n *node) {
				p.File = r.text(n, "file", 255)
				switch {
				case n.kind != stringNode:
				case !filepath.IsLocal(p.File) || path.Clean(p.File) != p.File || p.File == ".":
					r.bad(n.line, "file %q: want a clean path below the private folder, such as report.txt or out/report.txt", clip(p.File))
				case slices.ContainsFunc(files, func(o Publish) bool { return o.File == p.File }):
					r.bad(n.line, "file %q stands twice in publish; remove one", clip(p.File))
				}
			},
			"kind": func(n *node) {
				if p.Kind = r.text(n, "kind", 100); n.kind == stringNode && !mediaType.MatchString(p.Kind) {
					r.bad(n.line, "kind %q: want a media type such as text/plain", clip(p.Kind))
				}
			},
		}, "file", "kind")
		files = append(files, p)
	}
	return files
}

// exitCodes reads an exit code or a list of them.
func (r *fileReader) exitCodes(n *node) (codes []int) {
	items := []*node{n}
	if n.kind == sequenceNode {
		items = n.items
	}
	for _, item := range items {
		code := r.int(item, "an exit code")
		switch {
		case item.kind != numberNode:
		case code < 0 || code > 255:
			r.bad(item.line, "exit code %s: want 0 to 255", clip(item.text))
		case slices.Contains(codes, int(code)):
			r.bad(item.line, "exit code %d stands twice; remove one", code)
		}
		codes = append(codes, int(code))
	}
	if len(codes) == 0 {
		r.bad(n.line, "exit names no code; want at least one of 0 to 255")
	}
	return codes
}

func (r *fileReader) timeout(n *node) time.Duration {
	d, err := time.ParseDuration(r.text(n, "timeout", 40))
	if n.kind == stringNode && (err != nil || d < MinTimeout || d > MaxTimeout) {
		r.bad(n.line, "timeout %q: want a duration from %s to %s, such as 5s", clip(n.text), MinTimeout, MaxTimeout)
	}
	return d
}

var byteSize = regexp.MustCompile(`^([1-9][0-9]{0,9})(B|KiB|MiB)$`)

func (r *fileReader) size(n *node, what string, most int64) int64 {
	m := byteSize.FindStringSubmatch(r.text(n, what, 40))
	if n.kind != stringNode {
		return 0
	}
	var size int64
	if m != nil {
		size, _ = strconv.ParseInt(m[1], 10, 64)
		size <<= map[string]int{"B": 0, "KiB": 10, "MiB": 20}[m[2]]
	}
	if size < 1 || size > most {
		r.bad(n.line, "%s %q: want a size up to %dMiB, such as 256KiB", what, clip(n.text), most>>20)
	}
	return size
}

// Bounds on limits: the largest size, in bytes, and the most processes.
const (
	maxLimit     = 1 << 40
	maxProcesses = 4096
)

func (r *fileReader) limits(n *node) (l Limits) {
	r.mapping(n, "limits", fields{
		"nofile": func(n *node) {
			if l.NoFile = r.int(n, "nofile"); n.kind == numberNode && (l.NoFile < 4 || l.NoFile > 1<<20) {
				r.bad(n.line, "nofile %s: want 4 to %d open files", clip(n.text), 1<<20)
			}
		},
		"fsize": func(n *node) {
			var size int64
			if n.kind != numberNode || n.text != "0" { // 0 is no file at all
				size = r.size(n, "fsize", maxLimit)
			}
			l.FSize = &size
		},
		"cpu": func(n *node) {
			d, err := time.ParseDuration(r.text(n, "cpu", 40))
			if l.CPU = d; n.kind == stringNode && (err != nil || d < time.Second || d%time.Second != 0 || d > MaxTimeout) {
				r.bad(n.line, "cpu %q: want whole seconds from 1s to %s", clip(n.text), MaxTimeout)
			}
		},
		"memory": func(n *node) { l.Memory = r.size(n, "memory", maxLimit) },
		"processes": func(n *node) {
			if l.Processes = r.int(n, "processes"); n.kind == numberNode && (l.Processes < 1 || l.Processes > maxProcesses) {
				r.bad(n.line, "processes %s: want 1 to %d", clip(n.text), maxProcesses)
			}
		},
	})
	return l
}

func (r *fileReader) paths(n *node) (p Paths) {
	read := func(to *[]string, what string) func(*node) {
		return func(n *node) {
			*to = r.list(n, what, 64, MaxString)
			for i, path := range *to {
				if !filepath.IsAbs(path) || filepath.Clean(path) != path {
					r.bad(n.items[i].line, "%s %q: want a clean absolute path", what, clip(path))
				}
			}
		}
	}
	r.mapping(n, "fs", fields{"read": read(&p.Read, "read"), "write": read(&p.Write, "write"), "exec": read(&p.Exec, "exec"),
		"metadata": func(n *node) { p.Metadata = r.bool(n, "metadata") }})
	return p
}

func (r *fileReader) network(n *node) Network {
	net := Network(r.text(n, "network", 40))
	switch net {
	case NetworkNone, NetworkNetlink, NetworkUnix, NetworkAny:
	default:
		if n.kind == stringNode {
			r.bad(n.line, "unknown network %q; want none, netlink, unix or any", clip(string(net)))
		}
	}
	return net
}

// sandboxLayers are the layers that an op may insist on, by the names that results and
// readiness give them.
var sandboxLayers = []string{"landlock", "seccomp", "limits", "capabilities", "run_as", "cgroup", "namespaces"}

// sandbox reads which layers an op insists on. "none", which asks for no sandbox, is
// looked at with the rest of the op.
func (r *fileReader) sandbox(n *node) (require []string) {
	if n.kind == stringNode {
		if n.text != "none" {
			r.bad(n.line, "sandbox %q: want none, or {require: LAYERS} of %s", clip(n.text), strings.Join(sandboxLayers, ", "))
		}
		return nil
	}
	r.mapping(n, "sandbox", fields{"require": func(n *node) {
		require = r.list(n, "require", 16, 40)
		for i, layer := range require {
			switch {
			case !slices.Contains(sandboxLayers, layer):
				r.bad(n.line, "there is no layer %q; the layers are %s", clip(layer), strings.Join(sandboxLayers, ", "))
			case slices.Contains(require[:i], layer):
				r.bad(n.line, "the layer %s stands twice; remove one", layer)
			}
		}
	}}, "require")
	return require
}

var catalogWord = lazily(`^[a-z0-9][a-z0-9-]{0,63}$`)

func (r *fileReader) catalog(n *node) *Catalog {
	c := new(Catalog)
	words := func(n *node, what string) []string {
		list := r.list(n, what, 32, 64)
		for _, w := range list {
			if !catalogWord().MatchString(w) {
				r.bad(n.line, "%s: %q: want lower-case letters, digits and -", what, clip(w))
			}
		}
		return list
	}
	kind := func(n *node, what string) string {
		if n.kind == nullNode {
			return ""
		}
		return r.text(n, what, 100)
	}
	r.mapping(n, "catalog", fields{
		"label": func(n *node) { c.Label = r.text(n, "label", 100) },
		"group": func(n *node) {
			if c.Group = r.text(n, "group", 64); n.kind == stringNode && !catalogWord().MatchString(c.Group) {
				r.bad(n.line, "group %q: want lower-case letters, digits and -", clip(c.Group))
			}
		},
		"domains":  func(n *node) { c.Domains = words(n, "domains") },
		"keywords": func(n *node) { c.Keywords = words(n, "keywords") },
		"input":    func(n *node) { c.Input = kind(n, "input") },
		"output":   func(n *node) { c.Output = kind(n, "output") },
	})
	return c
}

func (r *fileReader) examples(n *node) (ex Examples) {
	read := func(to *[]json.RawMessage, what string) func(*node) {
		return func(n *node) {
			if n.kind != sequenceNode {
				r.want(n, what, "a list of parameter objects")
				return
			}
			for _, item := range n.items {
				if item.kind != mappingNode {
					r.want(item, "an example", "a parameter object")
					continue
				}
				*to = append(*to, item.json())
			}
		}
	}
	r.mapping(n, "examples", fields{"accept": read(&ex.Accept, "accept"), "reject": read(&ex.Reject, "reject")})
	return ex
}

// paramKeys are the keys that a parameter of each type has of its own: those that it
// must have, and those that it may.
var paramKeys = map[Type]struct{ must, may []string }{
	Enum:     {must: []string{"values"}},
	Pattern:  {must: []string{"pattern", "max"}},
	Int:      {must: []string{"min", "max"}},
	Bool:     {may: []string{"then", "else"}},
	Text:     {must: []string{"max"}},
	Path:     {must: []string{"root", "kind"}, may: []string{"as"}},
	Host:     {},
	Duration: {must: []string{"min", "max"}, may: []string{"unit"}},
	Secret:   {must: []string{"credentials"}, may: []string{"as"}},
}

func (r *fileReader) params(n *node) Params {
	if n.kind != mappingNode {
		r.want(n, "params", "a mapping with a parameter under each name")
		return nil
	}
	ps := make(Params, 0, len(n.entries))
	for _, e := range n.entries {
		before := len(r.errs)
		p := r.param(e)
		if len(r.errs) == before {
			if err := p.compile(0); err != nil {
				r.bad(e.line, "%v", err)
			}
		}
		ps = append(ps, p)
	}
	return ps
}

func (r *fileReader) param(e entry) Param {
	p := Param{Name: e.key}
	what := "parameter " + clip(e.key)
	if e.value.kind != mappingNode {
		r.want(e.value, what, "a mapping with a type")
		return p
	}
	t := e.value.find("type")
	if t == nil {
		r.bad(e.line, "%s has no type; add it", what)
		return p
	}
	typ := Type(r.text(t, "type", 40))
	own, known := paramKeys[typ]
	if !known {
		switch {
		case t.kind == stringNode && slices.Contains([]Type{Names, Strings, Object}, typ):
			r.bad(t.line, "the type %s is for native ops only, since it is no word of an argv; use a pattern", typ)
		case t.kind == stringNode:
			r.bad(t.line, "unknown type %q; the types are %s", clip(string(typ)), strings.Join(typeNames(), ", "))
		}
		return p
	}
	p.Type = typ
	bound := func(to *int64, key string) func(*node) {
		return func(n *node) {
			if typ == Duration {
				*to = r.duration(n, key)
			} else {
				*to = r.int(n, key)
			}
		}
	}
	all := fields{
		"values":      func(n *node) { p.Values = r.list(n, "values", 1000, MaxString) },
		"credentials": func(n *node) { p.Values = r.list(n, "credentials", 100, 200) },
		"pattern":     func(n *node) { p.Pattern = r.text(n, "pattern", MaxString) },
		"min":         bound(&p.Min, "min"),
		"max":         bound(&p.Max, "max"),
		"then":        func(n *node) { p.Then = r.list(n, "then", 16, MaxString) },
		"else":        func(n *node) { p.Else = r.list(n, "else", 16, MaxString) },
		"root":        func(n *node) { p.Root = r.text(n, "root", MaxString) },
		"kind":        func(n *node) { p.Kind = r.text(n, "kind", 40) },
		"as":          func(n *node) { p.As = r.text(n, "as", 40) },
		"unit":        func(n *node) { p.Unit = r.text(n, "unit", 40) },
	}
	its := fields{
		"type":     func(*node) {},
		"doc":      func(n *node) { p.Doc = r.text(n, "doc", 300) },
		"optional": func(n *node) { p.Optional = r.bool(n, "optional") },
	}
	for _, k := range slices.Concat(own.must, own.may) {
		its[k] = all[k]
	}
	r.mapping(e.value, what, its, own.must...)
	if p.Type == Bool && len(p.Then)+len(p.Else) == 0 {
		r.bad(e.line, "%s selects no words; give then or else", what)
	}
	return p
}

// duration reads a bound of a Duration parameter, in nanoseconds.
func (r *fileReader) duration(n *node, what string) int64 {
	d, err := time.ParseDuration(r.text(n, what, 40))
	if n.kind == stringNode && err != nil {
		r.bad(n.line, "%s %q: want a duration such as 90s or 1h30m", what, clip(n.text))
	}
	return int64(d)
}

func (r *fileReader) int(n *node, what string) int64 {
	i, err := strconv.ParseInt(n.text, 10, 64)
	if n.kind != numberNode || err != nil {
		r.want(n, what, "an integer")
	}
	return i
}

// hostileValues are values that no parameter of a command op may accept, each with what is
// wrong with it. They are made for each file, so that no gateway keeps them.
func hostileValues() []hostile {
	return []hostile{
		{"\x00", "NUL"},
		{"a\x00b", "NUL"},
		{"\x1b[2J", "a control character"},
		{"a\u0085b", "a control character"},
		{"a\xffb", "invalid UTF-8"},
		{strings.Repeat("a", 1<<20), "1 MiB"},
		{strings.Repeat("0", 1<<20), "1 MiB"},
		{"-x", "a leading dash"},
		{"--", "a leading dash"},
		{"a\nb", "a line break"},
		{"a\n", "a line break"},
		{"..", "a way up (..)"},
		{"../", "a way up (..)"},
		{"../x", "a way up (..)"},
		{"../..", "a way up (..)"},
		{"../0", "a way up (..)"},
		{"/../", "a way up (..)"},
		{"a/../b", "a way up (..)"},
		{"0/../0", "a way up (..)"},
		{"../../etc/passwd", "a way up (..)"},
	}
}

// hostile is a value and what is wrong with it.
type hostile struct{ value, what string }

// hostileText is how many of hostileValues, from the first, a Text may not hold either.
const hostileText = 7

// prove runs the examples of op and tries its parameters with hostile values.
func (r *fileReader) prove(e entry, op *Op) {
	at := func(kind string, i int) int { return e.value.find("examples").find(kind).items[i].line }
	for i, ex := range op.Examples.Accept {
		if _, _, fault := op.Params.Parse(ex); fault != nil {
			r.bad(at("accept", i), "the example to accept is refused: %s; correct the example or the parameters", fault.Message)
		}
	}
	for i, ex := range op.Examples.Reject {
		if _, _, fault := op.Params.Parse(ex); fault == nil {
			r.bad(at("reject", i), "the example to reject is accepted; correct the example or the parameters")
		}
	}
	for i := range op.Params {
		p := op.Params[i]
		if r.hostile == nil {
			r.hostile = hostileValues()
		}
		tried := r.hostile
		if p.Type == Text {
			tried = tried[:hostileText]
		}
		for _, h := range tried {
			if p.Type == Enum && slices.Contains(p.Values, h.value) {
				continue // the operator's own word, whatever it is
			}
			// The check that Parse makes of a decoded value: a megabyte need not be
			// put into JSON and canonical form for each parameter at every start.
			if _, why := p.check(h.value); why == "" {
				r.bad(e.value.find("params").find(p.Name).line, "parameter %s accepts %s, for example %q; narrow its pattern", p.Name, h.what, clip(h.value))
				break
			}
		}
	}
}
