package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
)

// auditRead is the read audit: how far the notary has come.
func (g *gateway) auditRead() service.Read {
	return service.Read{Name: "audit", Manage: true, Do: func(ctx context.Context, _ ops.Identity, _ service.Query) (any, error) {
		return g.notary.Status(ctx)
	}}
}

// unsigned says that the notary does not get on, nothing if it does. Why is for
// operators to read: /readyz answers anybody.
func (g *gateway) unsigned() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := g.notary.Status(ctx)
	switch {
	case err != nil: // then the store says more
		return ""
	case s.State == "failed":
		return "the notary has failed, events are no longer signed: box audit says why"
	case s.State == "late":
		return fmt.Sprintf("the notary is late, %d events have no checkpoint: box audit says why", s.Lag)
	}
	return ""
}

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Follow, verify or export the signed log of all events",
		Long: `Show how far the log of all events is signed: the last event that a checkpoint
covers, and how many wait for theirs.

The gateway's notary hashes every event into a tree and signs checkpoints over it.
verify shows an event that was changed, removed, inserted, moved or cut off. A
checkpoint that is kept on another machine shows a store that was rolled back, too.`,
		Example: `  box audit
  box audit checkpoint > monday.checkpoint
  box audit verify --checkpoint monday.checkpoint
  box audit export --from 100 > events.jsonl`,
		Args: a.subcommandOnly,
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			raw, err := c.get(ctx, request{route: routeAudit}, nil)
			if err != nil {
				return err
			}
			return a.document(raw)
		}),
	}
	cmd.AddCommand(a.auditTailCommand(), a.auditCheckpointCommand(), a.auditVerifyCommand(), a.auditExportCommand())
	return a.speaks(cmd)
}

func (a *app) auditTailCommand() *cobra.Command {
	var after int64
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow the events as they are written",
		Long: `Print each event with its position as it is written, until interrupted. --after
begins with what follows a position: 0 is everything. Operators only.`,
		Example: `  box audit tail
  box audit tail --after 0 --jsonl`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if after < 0 {
				return usagef("--after %d: want a position, or 0 for the beginning", after)
			}
			from := int64(-1)
			if changed(cmd.Flags(), "after") {
				from = after
			}
			return a.asking(func(ctx context.Context, c *client, _ []string) error {
				return c.followFrom(ctx, from, "", func() error { return nil }, a.tailed)
			})(cmd, args)
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "begin with what follows this position (default: with what comes next)")
	return a.speaks(cmd)
}

// tailed prints one event.
func (a *app) tailed(e event) error {
	if a.json || a.jsonl {
		return a.document(e)
	}
	return a.printf("%d %s %s %s\n", e.Position, stamp(e.At), clean(e.Kind), clean(e.Stream))
}

func (a *app) auditCheckpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Print a signed checkpoint over every event up to now",
		Long: `Print a signed checkpoint over every event up to now, for keeping where this machine
cannot change it. box audit verify --checkpoint FILE compares it later. While no
gateway runs, it is the last one of the state folder.`,
		Example: "  box audit checkpoint > monday.checkpoint",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var got struct {
				Position   int64  `json:"position"`
				Checkpoint string `json:"checkpoint"`
				Key        string `json:"key"`
			}
			err := a.audited(cmd, func(ctx context.Context, c *client) error {
				_, err := c.get(ctx, request{route: routeCheckpoint}, &got)
				return err
			}, func(ctx context.Context, src *sqlite.Inspection, key notary.Key) error {
				cp, err := notary.Last(ctx, src, key)
				got.Position, got.Checkpoint, got.Key = cp.Size, cp.Note, key.String()
				return err
			})
			switch {
			case err != nil:
				return err
			case a.json || a.jsonl:
				return a.document(got)
			}
			return a.write([]byte(got.Checkpoint)) // a signed note, whose every byte counts
		},
	}
	return a.speaks(cmd)
}

// audited runs online against a gateway if one was named or owns the state folder, and
// else offline on the journal itself.
func (a *app) audited(cmd *cobra.Command, online func(context.Context, *client) error,
	offline func(context.Context, *sqlite.Inspection, notary.Key) error) error {
	ctx, cancel := a.patient(cmd.Context())
	defer cancel()
	ask := func() error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.close()
		return online(ctx, c)
	}
	if a.gateway != "" || a.getenv("INBAND_GATEWAY") != "" {
		return ask()
	}
	folder, err := a.folder()
	if err != nil {
		return err
	}
	src, err := sqlite.Inspect(ctx, folder.journal())
	if errors.Is(err, journal.ErrOwned) {
		return ask()
	}
	if err != nil {
		return err
	}
	key, err := notary.PublicKey(folder.audit())
	if err == nil {
		err = offline(ctx, src, key)
	}
	return errors.Join(err, src.Close())
}

// verified is what box audit verify prints.
type verified struct {
	OK        bool     `json:"ok"`
	Position  int64    `json:"position"`
	Head      int64    `json:"head"`
	Uncovered int64    `json:"uncovered"`
	Key       string   `json:"key,omitempty"`
	Found     *finding `json:"found,omitempty"`
}

type finding struct {
	Position int64  `json:"position"`
	What     string `json:"what"`
}

// verdict is what a verification says: in order, tampered with, or an error of reading.
func verdict(r notary.Report, err error) (verified, error) {
	var t *notary.Tampering
	if errors.As(err, &t) {
		return verified{Found: &finding{t.Position, t.What}}, nil
	}
	return verified{OK: err == nil, Position: r.Position, Head: r.Head, Uncovered: r.Uncovered}, err
}

func (a *app) auditVerifyCommand() *cobra.Command {
	var checkpoint, export, key string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compute the log anew and compare it with what was signed",
		Long: `Compute the whole log anew from the events and compare it with every stored hash and
every signed checkpoint. A running gateway does it itself; while none runs, the
journal of the state folder is read. What is found is named with its position, and
the exit code is 1.

--checkpoint FILE compares with a checkpoint that was kept elsewhere, too: without one,
an older copy of the whole state folder looks in order. --export FILE ("-" reads standard
input) checks an export instead, without gateway or state folder; without --key that
shows only that it is whole, so compare the key that is printed.`,
		Example: `  box audit verify
  box audit verify --checkpoint monday.checkpoint
  box audit verify --export events.jsonl --key notary.pub`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var kept string
			if checkpoint != "" {
				b, err := readSmall(checkpoint)
				if err != nil {
					return err
				}
				kept = string(b)
			}
			if export != "" {
				return a.verifyExport(export, key, kept)
			}
			if key != "" {
				return usagef("--key goes with --export; a state folder has its own key")
			}
			var v verified
			err := a.audited(cmd, func(ctx context.Context, c *client) error {
				got, err := c.do(ctx, request{route: routeVerify, body: map[string]string{"checkpoint": kept}, again: true})
				if err != nil {
					return err
				}
				return decode(got.body, &v)
			}, func(ctx context.Context, src *sqlite.Inspection, key notary.Key) (err error) {
				var list []notary.Checkpoint
				if kept != "" {
					cp, err := key.OpenCheckpoint(kept)
					if err != nil {
						return &exitError{code: ops.ExitUsage, err: fmt.Errorf("%s: %w", checkpoint, err)}
					}
					list = append(list, cp)
				}
				v, err = verdict(a.verifyJournal(ctx, src, key, list))
				return err
			})
			if err != nil {
				return err
			}
			return a.printVerified(v)
		},
	}
	f := cmd.Flags()
	f.StringVar(&checkpoint, "checkpoint", "", "file with a checkpoint that was kept")
	f.StringVar(&export, "export", "", "check this export; - reads standard input")
	f.StringVar(&key, "key", "", "file with the notary's public key, for --export")
	return a.speaks(cmd)
}

// verifyJournal verifies a journal against what the notary remembers of it, too.
func (a *app) verifyJournal(ctx context.Context, src *sqlite.Inspection, key notary.Key, kept []notary.Checkpoint) (notary.Report, error) {
	folder, err := a.folder()
	if err != nil {
		return notary.Report{}, err
	}
	switch last, found, err := notary.Remembered(folder.audit(), key); {
	case err != nil:
		return notary.Report{}, err
	case found:
		kept = append(kept, last)
	}
	return notary.Verify(ctx, src, key, kept...)
}

// printVerified prints a verification; one that has found something is an error.
func (a *app) printVerified(v verified) error {
	if a.json || a.jsonl {
		if err := a.document(v); err != nil {
			return err
		}
	}
	if v.Found != nil {
		return &exitError{code: ops.ExitFailed, err: errors.New(v.Found.What)}
	}
	if a.json || a.jsonl {
		return nil
	}
	if err := a.printf("the events up to position %d are those that were signed\n", v.Position); err != nil {
		return err
	}
	if v.Uncovered > 0 {
		a.notice("%d more, up to position %d, have no checkpoint yet", v.Uncovered, v.Head)
	}
	return nil
}

func (a *app) verifyExport(path, keyFile, kept string) error {
	var key notary.Key
	if keyFile != "" {
		b, err := readSmall(keyFile)
		if err != nil {
			return err
		}
		if key, err = notary.ParseKey(strings.TrimSuffix(string(b), "\n")); err != nil {
			return &exitError{code: ops.ExitUsage, err: fmt.Errorf("%s: %w", keyFile, err)}
		}
	}
	var list []notary.Checkpoint
	if kept != "" {
		if keyFile == "" {
			return usagef("--checkpoint with --export needs --key")
		}
		cp, err := key.OpenCheckpoint(kept)
		if err != nil {
			return &exitError{code: ops.ExitUsage, err: err}
		}
		list = append(list, cp)
	}
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	r, signedBy, err := notary.VerifyExport(in, key, list...)
	if errors.Is(err, notary.ErrNotCompared) {
		return &exitError{code: ops.ExitUsage, err: err}
	}
	v, err := verdict(r, err)
	if err != nil {
		return err
	}
	if v.OK {
		v.Key = signedBy.String()
		if keyFile == "" {
			a.notice("signed by the key in the export itself, %s; compare it with the gateway's, or give --key", signedBy)
		}
	}
	return a.printVerified(v)
}

// readSmall reads a file that can only be short.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, whole, err := readBounded(f, notary.MaxCheckpoint)
	if err == nil && !whole {
		err = usagef("%s is longer than a checkpoint or key can be", filepath.Base(path))
	}
	return b, err
}

func (a *app) auditExportCommand() *cobra.Command {
	var from int64
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the events with what proves them",
		Long: `Print the events as lines of JSON, with the key before and a signed checkpoint behind
them. box audit verify --export checks the lines without the gateway. They hold what
is in the journal. What is printed is checked meanwhile; an export that breaks off
or does not verify ends with an error.`,
		Example: `  box audit export > events.jsonl
  box audit export --from 1000 > since.jsonl`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from < 1 {
				return usagef("--from %d: positions begin with 1", from)
			}
			return a.audited(cmd, func(ctx context.Context, c *client) error {
				return a.fetchExport(ctx, c, from)
			}, func(ctx context.Context, src *sqlite.Inspection, key notary.Key) error {
				cp, err := notary.Last(ctx, src, key)
				if err != nil {
					return err
				}
				err = a.checked(key, func(w io.Writer) error { return notary.Export(ctx, src, key, cp, from, w) })
				if errors.Is(err, notary.ErrNothingThere) {
					return &exitError{code: ops.ExitUsage, err: err}
				}
				return err
			})
		},
	}
	cmd.Flags().Int64Var(&from, "from", 1, "position of the first event")
	return a.speaks(cmd)
}

// checked prints what produce writes and verifies it at the same time.
func (a *app) checked(key notary.Key, produce func(io.Writer) error) error {
	r, pipe := io.Pipe()
	verified := make(chan error, 1)
	go func() {
		_, _, err := notary.VerifyExport(r, key)
		r.CloseWithError(err)
		verified <- err
	}()
	out := bufio.NewWriter(a.out)
	err := produce(io.MultiWriter(out, pipe))
	pipe.CloseWithError(err)
	if found := <-verified; err == nil {
		err = found
	}
	return errors.Join(err, out.Flush())
}

func (a *app) fetchExport(ctx context.Context, c *client, from int64) error {
	r := request{route: routeExport, query: url.Values{"from": {strconv.FormatInt(from, 10)}}, head: http.Header{"Accept": {"application/jsonl, application/problem+json"}}}
	resp, err := c.send(ctx, r, nil)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return c.unreachable(err, r)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _, err := readBounded(resp.Body, 1<<20)
		if err != nil {
			return c.unreachable(err, r)
		}
		return asFault(answer{status: resp.StatusCode, body: b})
	}
	return a.checked(notary.Key{}, func(w io.Writer) error {
		_, err := io.Copy(w, resp.Body)
		return err
	})
}
