package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"inband/exec/proc"
)

// RecordFile is the file of the run's folder that says which process the run was. It is
// this package's own and is there as long as the folder is.
const RecordFile = "run.json"

// maxRecord bounds it, in bytes.
const maxRecord = 64 << 10

// record is what a later life of the worker must know of a run. It is durable before the
// command begins.
type record struct {
	Unpacked bool   `json:"unpacked"`           // the source stands in the working folder
	Worktree string `json:"worktree,omitempty"` // its digest
	// Process is the command, or the init of its namespaces; its PID is 0 if it never
	// began.
	Process    proc.Process `json:"process"`
	Namespaces bool         `json:"namespaces"`
	// Over says that Run has ended the tree and looked twice.
	Over bool `json:"over"`
	// Worker is who started it, in which namespace of pids and which cgroup.
	Worker proc.Process `json:"worker"`
	PIDs   string       `json:"pids"`
	Cgroup string       `json:"cgroup,omitempty"`
	UID    int          `json:"uid"` // of the command
	// Mark is a variable that the command began with.
	Mark string `json:"mark"`
	// Filtered says that a filter of system calls is on it.
	Filtered bool `json:"filtered"`
}

// readRecord reads the record of a run, an empty one if there is none.
func readRecord(root *os.Root) (*record, error) {
	rec := new(record)
	info, err := root.Lstat(RecordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxRecord) {
		err = errors.New("it is none of this program's")
	}
	var raw []byte
	if err == nil {
		raw, err = root.ReadFile(RecordFile)
	}
	if err == nil {
		err = json.Unmarshal(raw, rec)
	}
	if err != nil {
		return nil, fmt.Errorf("the record of the run: %w", err)
	}
	return rec, nil
}

// begins notes that p is about to begin.
func (rec *record) begins(p proc.Process, r *Runner, folder string) {
	rec.Process, rec.Namespaces, rec.UID, rec.Over = p, r.namespaces, r.uid(), false
	rec.Mark, rec.Filtered = "HOME="+folder+"/"+homeFolder, !r.config.Unconfined
	rec.Worker, rec.PIDs, rec.Cgroup = proc.Process{}, "", ""
	if self, err := proc.Identify(os.Getpid()); err == nil {
		rec.Worker = self
	}
	if pids, err := os.Readlink("/proc/self/ns/pid"); err == nil {
		rec.PIDs = pids
	}
	if e := r.config.Enclosure; e != nil {
		rec.Cgroup = e.Cgroup
	}
}

// never notes that nothing has begun, and over that nothing is left. If that cannot be
// written, a later look finds out.
func (rec *record) never(root *os.Root) {
	rec.Process = proc.Process{}
	_ = rec.write(root)
}

func (rec *record) over(root *os.Root) {
	rec.Over = true
	_ = rec.write(root)
}

// write makes the record durable.
func (rec *record) write(root *os.Root) (err error) {
	const fresh = RecordFile + ".new"
	defer func() {
		if err != nil {
			err = fmt.Errorf("the record of the run: %w", err)
		}
	}()
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := root.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := root.Rename(fresh, RecordFile); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// ticks and boot are the two parts of a process's start.
func ticks(p proc.Process) uint64 {
	t, _, _ := strings.Cut(p.Start, "@")
	n, _ := strconv.ParseUint(t, 10, 64)
	return n
}

func boot(p proc.Process) string {
	_, b, _ := strings.Cut(p.Start, "@")
	return b
}
