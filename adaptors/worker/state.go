package worker

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service/plane/wire"
)

// State is the folder of one worker, mode 0700:
//
//	lock             whoever holds it is the worker
//	key              its Ed25519 key, the 32 bytes of its seed, mode 0600
//	enrolment.json   what the plane answered when the key was enrolled
//	leases/S.json    what runs, or ran when the worker died: written before it begins
//	runs/S/          the folder of the run or verification S (Task.Folder), unless PutRuns
//	                 has said otherwise
//	kept/S/          copies of files that S is to return, by digest
//	credentials/     secrets that grants may refer to as file:NAME
type State struct {
	dir  string
	runs string // where the folders of runs stand
	lock *os.File
	key  ed25519.PrivateKey
}

// LockedError says that another process is this worker.
type LockedError struct{ Folder string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("another process is the worker of %s; one worker is one process", e.Folder)
}

// OpenState makes the folder, if it does not exist, and takes it: two processes cannot
// share it. The first time it makes the key. The error may be a *LockedError.
func OpenState(dir string) (_ *State, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &State{dir: dir, runs: filepath.Join(dir, "runs")}
	for _, d := range []string{dir, s.path("leases"), s.path("runs"), s.path("kept"), s.path("credentials")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("worker's folder: %w", err)
		}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("worker's folder: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("worker's folder %s has mode %04o, which lets others at its key; chmod 700 it", dir, mode)
	}
	s.lock, err = os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("worker's folder: %w", err)
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for {
		err = unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, &LockedError{dir}
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", s.lock.Name(), err)
	}
	return s, s.loadKey()
}

// Close gives the folder back.
func (s *State) Close() error { return s.lock.Close() }

// Credentials is the folder of the secrets that grants may refer to as file:NAME.
func (s *State) Credentials() string { return s.path("credentials") }

// Runs is the folder below which the folders of runs stand.
func (s *State) Runs() string { return s.runs }

// PutRuns has the folders of runs stand in a folder of this worker's below dir, which
// others may pass: for commands that run as another user, whom the worker's own folder
// does not let in.
func (s *State) PutRuns(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	runs := filepath.Join(dir, "inband-"+strings.TrimPrefix(wire.KeyID(s.Public()), "sha256:")[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("folder of the runs: %w", err)
	}
	switch err := os.Mkdir(runs, 0o700); {
	case err == nil:
		if err := os.Chmod(runs, 0o711); err != nil { // whatever the umask says
			return fmt.Errorf("folder of the runs: %w", err)
		}
	case !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("folder of the runs: %w", err)
	}
	if info, err := os.Lstat(runs); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("folder of the runs: %s is no folder", runs))
	} else if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("folder of the runs: %s is another user's, or others may write to it", runs)
	}
	s.runs = runs
	return nil
}

// Public is the worker's public key.
func (s *State) Public() ed25519.PublicKey { return s.key.Public().(ed25519.PublicKey) }

func (s *State) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// loadKey reads the key, or makes it. One that others may read is refused.
func (s *State) loadKey() error {
	path := s.path("key")
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		seed := make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed) // crypto/rand ends the process rather than fail
		s.key = ed25519.NewKeyFromSeed(seed)
		return writeDurably(path, seed)
	}
	if err != nil {
		return fmt.Errorf("worker's key: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("worker's key %s has mode %v, want a file of mode 0600; what others may have read is no key, so move the folder away and enrol anew", path, info.Mode())
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("worker's key: %w", err)
	}
	if len(seed) != ed25519.SeedSize {
		return fmt.Errorf("worker's key %s has %d bytes, want %d", path, len(seed), ed25519.SeedSize)
	}
	s.key = ed25519.NewKeyFromSeed(seed)
	return nil
}

// enrolment reports what the plane answered, and false if the key is not enrolled.
func (s *State) enrolment() (wire.Enrolled, bool, error) {
	var e wire.Enrolled
	b, err := os.ReadFile(s.path("enrolment.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err == nil && (e.Worker.ID == "" || len(e.PlaneKey) != ed25519.PublicKeySize) {
		err = errors.New("it does not say who the worker is and which key the plane has")
	}
	if err != nil {
		return e, false, fmt.Errorf("%s: %w", s.path("enrolment.json"), err)
	}
	return e, true, nil
}

func (s *State) keepEnrolment(e wire.Enrolled) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return writeDurably(s.path("enrolment.json"), append(b, '\n'))
}

// lease is what must be known of a run after a crash.
type lease struct {
	Subject      string        `json:"subject"` // its run, or its verification
	Run          string        `json:"run"`
	Verification string        `json:"verification,omitempty"`
	Delegation   string        `json:"delegation"`
	Fence        int64         `json:"fence"`
	Boot         string        `json:"boot"`
	Folder       string        `json:"folder"`            // its Task.Folder
	Process      *wire.Process `json:"process,omitempty"` // its command, once that stands
}

// keepLease makes l durable.
func (s *State) keepLease(l lease) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return writeDurably(s.path("leases", l.Subject+".json"), append(b, '\n'))
}

// forget removes whatever there is of a subject, and folder. What cannot be removed of its
// files stays and is an error; its lease goes last.
func (s *State) forget(subject, folder string) error {
	if !safeName(subject) {
		return fmt.Errorf("%q is no id", subject)
	}
	if folder != "" && filepath.Base(folder) != subject {
		return fmt.Errorf("%s is no folder of %s", folder, subject)
	}
	err := removeAll(s.path("kept", subject))
	if folder != "" {
		err = errors.Join(err, removeAll(folder))
	}
	if gone := os.Remove(s.path("leases", subject+".json")); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// leases lists what earlier lives have left, by subject. A lease that cannot be read is
// an error: what ran under it is not known.
func (s *State) leases() ([]lease, error) {
	entries, err := os.ReadDir(s.path("leases"))
	if err != nil {
		return nil, err
	}
	var all []lease
	for _, e := range entries {
		subject, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(subject, ".") {
			continue // begun to be written by a life that ended: nothing was begun under it
		}
		b, err := os.ReadFile(s.path("leases", e.Name()))
		if err != nil {
			return nil, err
		}
		var l lease
		if err := json.Unmarshal(b, &l); err != nil || l.Subject != subject || l.Run == "" || !filepath.IsAbs(l.Folder) {
			return nil, fmt.Errorf("%s is not what a worker writes there; look what of it still runs, then remove it", s.path("leases", e.Name()))
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b lease) int { return strings.Compare(a.Subject, b.Subject) })
	return all, nil
}

// Identity is who this worker is, as its enrolment says; the zero value if it has none.
func (s *State) Identity() (ops.Identity, error) {
	e, _, err := s.enrolment()
	return e.Worker, err
}

// safeName reports whether an id of the plane's can be the name of a folder.
func safeName(id string) bool {
	if id == "" || len(id) > 64 || id[0] == '.' || id[0] == '-' {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// writeDurably replaces a file with mode 0600, whole or not at all, and durably.
func writeDurably(path string, content []byte) (err error) {
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

// removeAll removes a tree that a command has made, also where it has taken its owner's
// right to enter a folder.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // before it is read, since WalkDir comes here first
		}
		return nil
	})
	return os.RemoveAll(dir)
}
