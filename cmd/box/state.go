package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"inband/ops"
)

// stateFolder is where a gateway keeps what must outlive it:
//
//	journal.db          the journal, with its -wal, -shm and .lock
//	tls/ca.pem ca.key   the certificate authority of this gateway
//	tls/server.pem .key its certificate
//	ops.d/*.yaml        the op files, which operators edit
//	policy.cedar        who may do what, which operators edit
//	adaptors/*.json     the chats that the gateway is in, which operators edit
//	credentials/        secrets that ops may refer to as file:NAME, mode 0700
//	operator.token      the token of the identity "operator", mode 0600
//	audit/notary.key    the key that signs the log of all events, mode 0600
//	audit/notary.pub    its public key
//	plane/key           the key that signs what workers are given, mode 0600
//	artifacts/          the files that calls have published and runs have left, by digest
//	gateway.json        where the gateway listens, while it does
type stateFolder string

func (s stateFolder) journal() string     { return filepath.Join(string(s), "journal.db") }
func (s stateFolder) tls() string         { return filepath.Join(string(s), "tls") }
func (s stateFolder) ca() string          { return filepath.Join(s.tls(), "ca.pem") }
func (s stateFolder) ops() string         { return filepath.Join(string(s), "ops.d") }
func (s stateFolder) policy() string      { return filepath.Join(string(s), "policy.cedar") }
func (s stateFolder) adaptors() string    { return filepath.Join(string(s), "adaptors") }
func (s stateFolder) token() string       { return filepath.Join(string(s), "operator.token") }
func (s stateFolder) credentials() string { return filepath.Join(string(s), "credentials") }
func (s stateFolder) audit() string       { return filepath.Join(string(s), "audit") }
func (s stateFolder) plane() string       { return filepath.Join(string(s), "plane") }
func (s stateFolder) planeKey() string    { return filepath.Join(s.plane(), "key") }
func (s stateFolder) address() string     { return filepath.Join(string(s), "gateway.json") }

// real is where the folder stands, without links.
func (s stateFolder) real() (string, error) {
	path, err := filepath.Abs(string(s))
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// folder is the state folder that this invocation means.
func (a *app) folder() (stateFolder, error) {
	dir := a.state
	if dir == "" {
		dir = a.getenv("INBAND_STATE")
	}
	if dir == "" {
		if base := a.getenv("XDG_STATE_HOME"); filepath.IsAbs(base) { // a relative one is to be ignored (XDG base directories)
			dir = filepath.Join(base, "inband")
		}
	}
	if dir == "" {
		home := a.getenv("HOME")
		if home == "" {
			return "", usagef("no state folder: HOME is not set; give --state or INBAND_STATE")
		}
		dir = filepath.Join(home, ".local", "state", "inband")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state folder %s: %w", dir, err)
	}
	return stateFolder(abs), nil
}

// address is what gateway.json holds.
type address struct {
	URL  string `json:"url"`
	PID  int    `json:"pid"`
	Boot string `json:"boot"`
}

// readAddress says where the gateway of s listens, and false if none does.
func (s stateFolder) readAddress() (address, bool, error) {
	b, err := os.ReadFile(s.address())
	if errors.Is(err, fs.ErrNotExist) {
		return address{}, false, nil
	}
	if err != nil {
		return address{}, false, fmt.Errorf("find the gateway: %w", err)
	}
	var at address
	if err := json.Unmarshal(b, &at); err != nil || at.URL == "" {
		return address{}, false, &exitError{code: ops.ExitUnreachable,
			err:  fmt.Errorf("%s is not what a gateway writes there", s.address()),
			hint: "restart the gateway, which writes it anew, or give --gateway"}
	}
	return at, true, nil
}

// writeAddress says where the gateway of s listens. Readers see all of it or nothing.
func (s stateFolder) writeAddress(at address) error {
	b, err := json.Marshal(at)
	if err != nil {
		return err
	}
	return writePrivate(s.address(), append(b, '\n'))
}

// removeAddress takes back what writeAddress said, if it still says so.
func (s stateFolder) removeAddress(at address) error {
	if now, ok, err := s.readAddress(); err != nil || !ok || now != at {
		return nil // another gateway's by now, or gone
	}
	return os.Remove(s.address())
}

// readToken returns the token in a file: its first line.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token, _, _ := strings.Cut(string(b), "\n")
	token = strings.TrimSpace(token)
	if token == "" {
		return "", &exitError{code: ops.ExitUsage, err: fmt.Errorf("%s holds no token", path)}
	}
	return token, nil
}

// writePrivate replaces a file with mode 0600, whole or not at all, and durably.
func writePrivate(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if _, err = f.Write(content); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes the names in dir durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
