package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"inband/failpoint"
	"inband/ops"
	"inband/service/artifacts"
	"inband/service/plane/wire"
)

// The verdicts.
const (
	passed          = "passed"
	failed          = "failed"
	evidenceMissing = "evidence_missing"
)

// verify judges what a run has returned: by its bytes, by what was attested of them, and
// by the declared test.
func (r *run) verify(worker context.Context) error {
	v, err := r.judge()
	if r.life.Err() != nil || err != nil {
		return r.stopped(worker, errors.Join(context.Cause(r.life), err))
	}
	v.Reason, v.Output = clip(v.Reason, maxText), clip(r.blot(v.Output), maxText)
	r.log.Info("judged", "verdict", v.Verdict, "reason", v.Reason)
	failpoint.Here("worker.before-verdict")
	_, err = r.chain.say(r.talk, wire.KindVerdict, v)
	failpoint.Here("worker.verdict-answered")
	return err
}

// judge comes to a verdict. An error means that it could not: another verifier may.
func (r *run) judge() (wire.Verdict, error) {
	v := wire.Verdict{Verdict: evidenceMissing, Checked: []wire.File{}}
	var lacks []string
	for _, name := range r.g.Outputs {
		if !slices.ContainsFunc(r.g.Result.Files, func(f wire.File) bool { return f.Name == name }) {
			lacks = append(lacks, fmt.Sprintf("%q was not returned", name))
		}
	}
	if err := r.prepare(); err != nil {
		if r.life.Err() != nil {
			return v, err
		}
		v.Reason = "the source or what belongs to it cannot be had: " + err.Error()
		return v, nil
	}
	for i, f := range r.g.Result.Files {
		if i == MaxFiles {
			lacks = append(lacks, fmt.Sprintf("more than %d files were returned", MaxFiles))
			break
		}
		if err := r.fetchInto(f, ReturnedFolder); err != nil {
			if r.life.Err() != nil {
				return v, err
			}
			lacks = append(lacks, err.Error())
			continue
		}
		if err := attested(r.g.Grant, f); err != nil {
			lacks = append(lacks, fmt.Sprintf("file %q: %v", f.Name, err))
			continue
		}
		v.Checked = append(v.Checked, f)
	}
	if len(lacks) > 0 {
		v.Reason = strings.Join(lacks, "; ")
		return v, nil
	}
	counted := fmt.Sprintf("the digests, sizes and attestations of %d files are right", len(v.Checked))
	command := r.g.Verify
	declared := len(command) > 0
	if !declared {
		command = r.w.cfg.Command
	}
	switch {
	case r.w.cfg.DryRun && declared:
		v.Reason = "dry run: " + counted + "; the declared test was not run"
		return v, nil
	case len(v.Checked) == 0 && len(command) == 0:
		v.Reason = "no file was returned and no test is declared: there is nothing to judge by"
		return v, nil
	case r.w.cfg.DryRun || len(command) == 0:
		v.Verdict, v.Reason = passed, counted+"; no test is declared"
		if r.w.cfg.DryRun {
			v.Reason = "dry run: " + v.Reason
		}
		return v, nil
	}
	r.task.Argv = command
	r.task.Overlay = TaskFolder + "/" + ReturnedFolder
	r.task.Env = append(r.task.Env, "INBAND_RETURNED="+r.task.Path(TaskFolder, ReturnedFolder))
	ctx, cancel := context.WithCancel(r.life)
	defer cancel()
	out, err := r.w.cfg.Runner.Run(ctx, r.task, r)
	r.mu.Lock()
	r.process = nil
	r.mu.Unlock()
	if declared {
		v.Command = command
	}
	switch {
	case err != nil && r.life.Err() != nil:
		return v, err
	case err != nil:
		v.Command = nil
		v.Reason = "the test was not begun: " + err.Error()
	case len(out.Survivors) > 0 || out.Stopped == stoppedCancelled || out.Unknown != "":
		return v, fmt.Errorf("how the test ended is not known: %s%s, %d processes left", out.Unknown, out.Stopped, len(out.Survivors))
	case out.Exit == 0 && out.Stopped == "":
		v.Verdict, v.Output, v.Reason = passed, out.Tail, counted+"; the test exits with 0"
	case out.Stopped != "":
		v.Verdict, v.Exit, v.Output, v.Reason = failed, out.Exit, out.Tail, "the test was stopped: "+out.Stopped
	case out.Signal != "":
		v.Verdict, v.Exit, v.Output, v.Reason = failed, out.Exit, out.Tail, "the test was ended by "+out.Signal
	default:
		v.Verdict, v.Exit, v.Output, v.Reason = failed, out.Exit, out.Tail, fmt.Sprintf("the test exits with %d", out.Exit)
	}
	return v, nil
}

// attested reports why nothing that was attested of f speaks for it as what the run of g
// has made from g's source. Whose signature an attestation carries the plane has proved,
// and with its own signature on the grant it stands for that.
func attested(g wire.Grant, f wire.File) error {
	why := errors.New("nothing was attested of it")
	for _, envelope := range g.Attested[f.Digest] {
		sealed, err := wire.Read(envelope, artifacts.MaxStatement)
		if err == nil && sealed.Type != artifacts.AttestationType {
			err = fmt.Errorf("an attestation of type %q", sealed.Type)
		}
		var s artifacts.Statement
		if err == nil {
			s, err = artifacts.ReadStatement(sealed.Payload)
		}
		if err != nil {
			why = err
			continue
		}
		p := s.Predicate
		switch {
		case s.Name() != f.Name || string(s.Digest()) != f.Digest:
			why = errors.New("what was attested is of another file")
		case p.Run != g.Run || p.Producer != g.Producer || p.Producer == ops.IdentityID(g.Worker):
			why = errors.New("what was attested is of another run or producer")
		case p.Source.Revision != g.Source.Revision || g.Source.Worktree != "" && p.Source.Worktree != g.Source.Worktree:
			why = errors.New("what was attested is of another source")
		default:
			return nil
		}
	}
	return why
}
