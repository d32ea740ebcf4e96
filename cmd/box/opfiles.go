package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/exec/command"
	"inband/exec/sandbox"
	"inband/ops"
)

func (a *app) opsCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [DIR|FILE…]",
		Short: "Check op files",
		Long: `Check op files as the gateway does before it loads them: their syntax, every op and
parameter, the examples in them, and hostile values that an op must refuse. Without an
argument it checks ops.d of the state folder. No gateway is needed and nothing is run.

What is wrong is printed to standard error as FILE:LINE: what, and what to do (exit
code 2). With --json it is one document on standard output.`,
		Example: `  box ops check
  box ops check ops.d/ extra/backup.yaml`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				folder, err := a.folder()
				if err != nil {
					return err
				}
				args = []string{folder.ops()}
			}
			read, err := readOpFiles(args)
			var problems ops.FileErrors
			if err != nil && !errors.As(err, &problems) {
				return err
			}
			var bound []ops.Bound
			if err == nil {
				var doubts []command.Problem
				// What a gateway allows is its own configuration's.
				allowed := command.Config{AllowRoot: true}
				for _, f := range read {
					for _, d := range f.Ops {
						allowed.AllowUnconfined = append(allowed.AllowUnconfined, d.Name)
					}
				}
				bound, doubts = bindOpFiles(read, allowed)
				for _, d := range doubts {
					// What is not here may be where the gateway runs.
					var missing *sandbox.MissingError
					if errors.Is(d.Err, fs.ErrNotExist) || errors.As(d.Err, &missing) {
						a.notice("%v", d)
						continue
					}
					problems = append(problems, &ops.FileError{File: d.File, Line: d.Line, Message: d.Err.Error()})
				}
			}
			return a.printCheck("op", "the op files", len(bound), problems)
		},
	}
	return a.prints(cmd)
}

// printCheck says how many things of a kind ("op", "rule") are good in a place ("the
// op files", "the policy"), or what is wrong there, which is a usage error.
func (a *app) printCheck(kind, place string, good int, problems ops.FileErrors) error {
	if a.json || a.jsonl {
		type problem struct {
			File    string `json:"file"`
			Line    int    `json:"line"`
			Message string `json:"message"`
		}
		list := []problem{}
		for _, p := range problems {
			list = append(list, problem{p.File, p.Line, p.Message})
		}
		if err := a.document(map[string]any{"ok": len(problems) == 0, kind + "s": good, "problems": list}); err != nil {
			return err
		}
	}
	for _, p := range problems {
		fmt.Fprintln(a.errs, clean(p.Error()))
	}
	if len(problems) > 0 {
		return &exitError{code: ops.ExitUsage, err: fmt.Errorf("%s in %s", count(int64(len(problems)), "problem"), place)}
	}
	if a.json || a.jsonl {
		return nil
	}
	return a.printf("%s good\n", count(int64(good), kind))
}

// readOpFiles reads op files and the op files in folders. Its error is FileErrors when
// what is wrong is in them.
func readOpFiles(paths []string) ([]ops.File, error) {
	var files []ops.File
	var problems ops.FileErrors
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		var read []ops.File
		if info.IsDir() {
			read, err = ops.ReadDir(os.DirFS(path))
			err = inFolder(path, read, err)
		} else {
			var data []byte
			if data, err = os.ReadFile(path); err != nil {
				return nil, err
			}
			var one ops.File
			one, err = ops.ReadFile(path, data)
			read = []ops.File{one}
		}
		var found ops.FileErrors
		switch {
		case errors.As(err, &found):
			problems = append(problems, found...)
		case err != nil:
			return nil, err
		default:
			files = append(files, read...)
		}
	}
	problems = append(problems, taken(files)...)
	if len(problems) > 0 {
		return nil, problems
	}
	return files, nil
}

// inFolder makes the file names in what ReadDir returned paths from here.
func inFolder(dir string, read []ops.File, err error) error {
	for i := range read {
		for j := range read[i].Ops {
			read[i].Ops[j].File = filepath.Join(dir, read[i].Ops[j].File)
		}
	}
	var found ops.FileErrors
	if errors.As(err, &found) {
		for _, p := range found {
			p.File = filepath.Join(dir, p.File)
		}
	}
	return err
}

// taken finds the names that native ops or ops of other paths have. Those twice in one
// folder are found by ReadDir.
func taken(files []ops.File) ops.FileErrors {
	owner := make(map[ops.OpName]string)
	for _, op := range ops.Natives() {
		for _, name := range append([]ops.OpName{op.Name}, op.Aliases...) {
			owner[name] = "the native op " + string(op.Name)
		}
	}
	var problems ops.FileErrors
	for _, f := range files {
		for _, def := range f.Ops {
			for _, name := range append([]ops.OpName{def.Name}, def.Aliases...) {
				if who, ok := owner[name]; ok {
					problems = append(problems, &ops.FileError{
						File: def.File, Line: def.Line, Message: fmt.Sprintf("the name %s is taken by %s; choose another one", name, who),
					})
					continue
				}
				owner[name] = fmt.Sprintf("the op %s at %s:%d", def.Name, def.File, def.Line)
			}
		}
	}
	return problems
}

// bindOpFiles gives each op what runs it, and says which ops cannot be run as things
// are.
func bindOpFiles(files []ops.File, config command.Config) (bound []ops.Bound, doubts []command.Problem) {
	for _, f := range files {
		b, d := command.Bind(f, config)
		bound, doubts = append(bound, b...), append(doubts, d...)
	}
	return bound, doubts
}

// loadOpFiles reads the op files of a gateway. An op whose program is missing or not
// to be trusted is listed all the same, and its calls say so; the log says it at once.
// So it is with an op whose sandbox a canary got out of.
func loadOpFiles(dir string, config command.Config, log *slog.Logger) ([]ops.Bound, error) {
	files, err := readOpFiles([]string{dir})
	if err != nil {
		return nil, err
	}
	bound, doubts := bindOpFiles(files, config)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a start or a reload, which nobody cancels
	defer cancel()
	err = command.Prove(ctx, bound)
	disabled := command.Disabled(bound)
	if err != nil && len(disabled) == 0 {
		log.Error("the sandbox could not be tried", "err", err)
	}
	for _, d := range disabled {
		log.Error("an op is disabled", "op", d.Op, "file", d.File, "line", d.Line, "why", d.Err)
	}
	for _, d := range doubts {
		if !slices.ContainsFunc(disabled, func(p command.Problem) bool { return p.Op == d.Op }) {
			log.Warn("an op cannot run", "op", d.Op, "file", d.File, "line", d.Line, "why", d.Err)
		}
	}
	return bound, nil
}

// problemLines is what is wrong with op files, a line each.
func problemLines(err error) []string { return strings.Split(err.Error(), "\n") }

// problems prints the problems in the fault of a refused reload.
func (a *app) problems(err error) {
	var fault *ops.Fault
	if !errors.As(err, &fault) {
		return
	}
	list, _ := fault.Details["problems"].([]any)
	for _, p := range list {
		fmt.Fprintln(a.errs, clean(fmt.Sprint(p)))
	}
}

// ensureOpFiles writes the op files that come with box into dir when there is no such
// folder. One that exists is the operator's, whatever it lacks.
func ensureOpFiles(dir string) (bool, error) {
	if _, err := os.Lstat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	// Beside and then renamed, so that a crash leaves all of them or none.
	temporary, err := os.MkdirTemp(filepath.Dir(dir), ".ops.d.*")
	if err != nil {
		return false, fmt.Errorf("write op files: %w", err)
	}
	defer os.RemoveAll(temporary) // gone by then, unless an error comes first
	shipped, err := fs.Glob(ops.Files, "*.yaml")
	if err != nil {
		return false, err
	}
	slices.Sort(shipped)
	for _, name := range shipped {
		b, err := fs.ReadFile(ops.Files, name)
		if err != nil {
			return false, err
		}
		if err := writePrivate(filepath.Join(temporary, name), b); err != nil {
			return false, err
		}
	}
	if err := os.Rename(temporary, dir); err != nil {
		return false, fmt.Errorf("write op files: %w", err)
	}
	return true, syncFolder(filepath.Dir(dir))
}
