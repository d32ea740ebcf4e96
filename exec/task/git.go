package task

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"inband/exec/command"
	"inband/exec/proc"
	"inband/exec/sandbox"
)

var objectID = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// export unpacks a revision of a git repository of this machine into root. The revision is
// a full object id: a name may come to mean something else. git runs confined, may read
// the repository and nothing else of this machine's users, and is told to fetch nothing.
// What the repository's attributes leave out of an archive or put into it (export-ignore,
// export-subst) is left out or put in.
func (r *Runner) export(ctx context.Context, root *os.Root, revision string, limit time.Duration) (string, error) {
	if r.config.Repository == "" {
		return "", refuse("the revision %q is no digest of an archive, and this worker has no repository", shortened(revision))
	}
	if !objectID.MatchString(revision) {
		return "", refuse("the revision %q is no full object id; want 40 or 64 lower-case hex digits", shortened(revision))
	}
	git, err := lookup("git", DefaultPath, "")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to := io.Pipe()
	type unpacked struct {
		digest string
		err    error
	}
	done := make(chan unpacked, 1)
	go func() {
		digest, err := Unpack(ctx, root, from, r.config.Source, r.owner())
		from.CloseWithError(fmt.Errorf("unpack: %w", err)) // whoever writes on is told
		done <- unpacked{digest, err}
	}()
	spec := proc.Spec{
		Argv: []string{git, "-c", "safe.directory=*", "-C", r.config.Repository, "archive", "--format=tar", revision},
		Env: []string{"PATH=" + DefaultPath, "LANG=C.UTF-8", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_PAGER=cat"},
		Timeout: limit, OutputMax: 8 << 10,
		Output: func(stderr bool, piece []byte) {
			if stderr {
				return
			}
			if _, err := to.Write(piece); err != nil {
				cancel()
			}
		},
	}
	policy := sandbox.Policy{Program: git, Exec: System.Exec, Read: append([]string{r.config.Repository}, System.Read...), Reads: true}
	if _, err = command.Confine(&spec, policy); err == nil {
		var res proc.Result
		res, err = proc.Run(ctx, spec)
		if err == nil {
			err = exported(revision, res)
		}
	}
	to.CloseWithError(err) // nil is the end of the archive
	u := <-done
	if u.err != nil && (err == nil || ctx.Err() != nil) {
		return "", u.err // git was ended because of it
	}
	return u.digest, err
}

// exported says how git failed, nil if it did not.
func exported(revision string, res proc.Result) error {
	said := strings.TrimSpace(string(res.Stderr.Head))
	switch {
	case res.Stopped != proc.NotStopped || res.Unknown || res.Survivors > 0:
		return fmt.Errorf("source: git archive %s was ended: %s %s", revision, res.Stopped, res.Why)
	case res.Exit != 0:
		return refuse("git archive %s ended with %d: %s", revision, res.Exit, shortened(said))
	}
	return nil
}
