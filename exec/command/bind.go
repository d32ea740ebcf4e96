package command

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"

	"inband/ops"
)

var _ ops.Binder = (*executor)(nil)

// maxBound is the size of the largest file whose digest an approval is bound to, in bytes.
const maxBound = 64 << 20

// Bind implements [ops.Binder]. It names
//
//   - argv: the words that the program would be started with,
//   - the program and, of a script, its interpreter: which files they are and, of the
//     program, the digest of its content,
//   - each further fixed word that is the path of a regular file, such as the script that a
//     program is given: which file it is, with the digest of its content. Of a file that is
//     not for everybody to read, or longer than 64 MiB, the time of its last change stands
//     for that: a digest, which many see, could be one of a password.
//   - each path that the call names: which file or folder it leads to.
//
// What a call cannot rest on now, such as a file that is not there, is an error.
func (e *executor) Bind(call ops.Call) (map[string]string, error) {
	values, _, fault := e.op.Params.Parse(call.Params)
	if fault != nil {
		return nil, fault
	}
	if e.broken != nil {
		return nil, e.disabled()
	}
	argv := Argv(&e.op, values)
	words, err := json.Marshal(argv)
	if err != nil {
		return nil, err // strings
	}
	sum := sha256.Sum256(words)
	rests := map[string]string{"argv": "sha256:" + hex.EncodeToString(sum[:])}
	program, err := e.examine(argv[0], e.op.Command.SHA256)
	if err != nil {
		return nil, notRun(ops.Unavailable, "op %s cannot be run here: %v", e.op.Name, err)
	}
	for i, f := range program.files {
		what := f.real + " " + f.id.String()
		if i == 0 {
			what = f.real + " sha256:" + program.sha256
		}
		rests["program "+f.path] = what
	}
	for _, a := range e.op.Command.Argv[1:] {
		if a.Param != "" || !filepath.IsAbs(a.Word) {
			continue
		}
		if digest, err := e.content(a.Word); err != nil {
			return nil, notRun(ops.Unavailable, "op %s: %v", e.op.Name, err)
		} else if digest != "" {
			rests["file "+a.Word] = digest
		}
	}
	for i := range e.op.Params {
		p := &e.op.Params[i]
		value, given := values[p.Name].(string)
		if !given || p.Type != ops.Path {
			continue
		}
		info, fault := look(p, value, e.user)
		if fault != nil {
			return nil, fault
		}
		real, err := filepath.EvalSymlinks(p.Absolute(value))
		if err != nil {
			return nil, noPath(p, value, err)
		}
		rests["path "+p.Name] = fmt.Sprintf("%s %s", real, identify(info).which())
	}
	return rests, nil
}

// content returns which file a word of an argv names and what tells its content from
// another, "" for a word that names none, or one that is no regular file.
func (e *executor) content(word string) (string, error) {
	real, err := filepath.EvalSymlinks(word)
	if err != nil {
		return "", nil // not a file now; if it is one later, that is a change
	}
	f, info, err := openRegular(real)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	if info.Size() > maxBound || info.Mode().Perm()&0o004 == 0 {
		return real + " " + identify(info).String(), nil
	}
	digest, err := e.digests.of(f, info)
	if err != nil {
		return "", fmt.Errorf("%s: %w", word, err)
	}
	return real + " sha256:" + digest, nil
}
