package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"inband/ops"
)

// Bounds on the value of a credential, in bytes.
const (
	// MinCredential is the least. What is shorter can be guessed, and would be taken out
	// of output where it is not meant.
	MinCredential = 8
	MaxCredential = 64 << 10
)

// Credentials are the secrets that ops may refer to. A value is read when a program is
// started that gets it, but for those of the environment; it is kept nowhere. The zero
// value has none.
type Credentials struct {
	// Folder holds the values of file:NAME, a file for each NAME. It and its files must
	// belong to root or the gateway's user and be closed to everybody else.
	Folder string
	// System holds those of systemd:NAME likewise; it is the service manager's
	// ($CREDENTIALS_DIRECTORY), whose group may read it. Empty if there is none.
	System string
	// Env holds those of env:NAME. The process's own environment must not hold them any
	// more.
	Env map[string]string
}

// secret is the value of a credential. Whatever prints, formats, logs or marshals it
// gets its name.
type secret struct {
	ref   ops.CredentialRef
	value []byte
}

// String returns "[secret REF]", which is also what stands for the value in output.
func (s secret) String() string { return "[secret " + string(s.ref) + "]" }

// Format writes String, whatever the verb.
func (s secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// LogValue is String.
func (s secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON writes String.
func (s secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Value returns what ref stands for, for a part of the gateway that needs a secret itself.
// Its error names ref and never a value. The caller keeps the value from whatever prints.
func (c *Credentials) Value(ref ops.CredentialRef) ([]byte, error) {
	s, err := c.resolve(ref)
	return s.value, err
}

// resolve returns what ref stands for. Its error names ref and never a value. One line
// break at the end, with which editors and echo end a file, is not part of the value.
func (c *Credentials) resolve(ref ops.CredentialRef) (secret, error) {
	where, name, _ := strings.Cut(string(ref), ":")
	var value []byte
	err := errors.New("there is none")
	switch {
	case !ref.Valid():
		err = errors.New("it is not of the form file:NAME, env:NAME or systemd:NAME")
	case where == "file" && c.Folder != "":
		value, err = readCredential(c.Folder, name, 0o077)
	case where == "systemd" && c.System != "":
		value, err = readCredential(c.System, name, 0o027) // 0440 is what a unit's user gets
	case where == "systemd":
		err = errors.New("the service manager gave this gateway none")
	case where == "env":
		v, ok := c.Env[name]
		if value, err = []byte(v), nil; !ok {
			err = errors.New("the gateway's configuration does not name it")
		}
	}
	if err != nil {
		return secret{}, fmt.Errorf("credential %s: %w", ref, err)
	}
	value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	switch {
	case len(value) < MinCredential:
		return secret{}, fmt.Errorf("credential %s: it is shorter than %d bytes", ref, MinCredential)
	case len(value) > MaxCredential:
		return secret{}, fmt.Errorf("credential %s: it is longer than %d bytes", ref, MaxCredential)
	}
	return secret{ref, value}, nil
}

// readCredential reads a file of a folder, both of which must be closed to others: no
// bit of closed is set in their modes.
func readCredential(folder, name string, closed fs.FileMode) ([]byte, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, reason(err)
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return nil, reason(err)
	}
	if why := exposed(info, closed); why != "" {
		return nil, fmt.Errorf("its folder: %s", why)
	}
	// Not what a link names, even within the folder: one credential has one name.
	if info, err := root.Lstat(name); err != nil {
		return nil, reason(err)
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := root.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if why := exposed(info, closed); why != "" {
		return nil, errors.New(why)
	}
	value, err := io.ReadAll(io.LimitReader(f, MaxCredential+3)) // a line break, and one byte too many
	if err != nil {
		return nil, reason(err)
	}
	return value, nil
}

// exposed says who else may read or change a file or a folder, "" if nobody.
func exposed(info fs.FileInfo, closed fs.FileMode) string {
	uid, _, ok := owner(info)
	switch {
	case !ok:
		return "its owner cannot be told"
	case uid != 0 && uid != os.Geteuid():
		return fmt.Sprintf("it belongs to user %d, neither root nor the gateway's", uid)
	case info.Mode().Perm()&closed != 0:
		return fmt.Sprintf("its mode is %04o, which lets others at it", info.Mode().Perm())
	}
	return ""
}

// reason is err without the path, which is the gateway's own and not the caller's to know.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// references are the credentials that a call of op with values gets, without repetition.
func references(op *ops.Op, values ops.Values) []ops.CredentialRef {
	var refs []ops.CredentialRef
	add := func(ref ops.CredentialRef) {
		if !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	for _, v := range op.Command.Env {
		if v.Credential != "" {
			add(v.Credential)
		}
	}
	for i := range op.Params {
		if value, given := values[op.Params[i].Name].(string); given && op.Params[i].Type == ops.Secret {
			add(ops.CredentialRef(value))
		}
	}
	return refs
}
