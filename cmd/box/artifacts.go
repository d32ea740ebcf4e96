package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/exec/command"
	"inband/ops"
	"inband/service/artifacts"
	"inband/service/plane/wire"
)

func (s stateFolder) artifacts() string { return filepath.Join(string(s), "artifacts") }

// keeper keeps what ops publish as artifacts.
type keeper struct{ files *artifacts.Store }

var _ command.Keeper = keeper{}

// Keep puts the bytes of r.
func (k keeper) Keep(ctx context.Context, r io.Reader) (string, int64, error) {
	digest, size, err := k.files.Put(ctx, r, command.MaxPublished)
	return string(digest), size, err
}

// artifactListing is an artifact as GET /v1/artifacts lists it.
type artifactListing struct {
	Digest    string    `json:"digest"`
	Name      string    `json:"name"`
	Kind      string    `json:"kind"`
	Bytes     int64     `json:"bytes"`
	Call      string    `json:"call"`
	Run       string    `json:"run"`
	By        identity  `json:"by"`
	CreatedAt time.Time `json:"created_at"`
}

// attestationListing is what a worker has signed, as GET /v1/artifacts/{digest} lists it.
type attestationListing struct {
	Name     string `json:"name"`
	Run      string `json:"run"`
	Producer string `json:"producer"`
	Fence    int64  `json:"fence"`
	Key      string `json:"key"`
	Revision string `json:"revision"`
	Test     *struct {
		Command []string `json:"command"`
		Exit    int      `json:"exit"`
	} `json:"test"`
	CapturedAt time.Time       `json:"captured_at"`
	Envelope   json.RawMessage `json:"envelope"`
}

// tested says what the test said.
func (l attestationListing) tested() string {
	if l.Test == nil {
		return "no test"
	}
	return fmt.Sprintf("exit %d: %s", l.Test.Exit, strings.Join(l.Test.Command, " "))
}

func (a *app) artifactsCommand() *cobra.Command {
	cmd := a.artifactList("artifacts", a.subcommandOnly)
	cmd.Short = "List published files, newest first; show, get, verify or collect them"
	cmd.Long = `List the files that calls have published and runs of workers have left, newest first.
An op publishes files when its op file says so (publish); all bytes are kept in the
state folder under their digest, sha256 of the bytes. Who may read a call's output may
read what it published, and what came of the work that it ordered.`
	cmd.Example = `  box artifacts
  box artifacts --limit 500 --jsonl
  box artifacts get sha256:9f86… -o report.txt`
	list := a.artifactList("list", exactly())
	list.Short = "List published files, newest first"
	list.Long = `List the files that calls have published and runs of workers have left, newest first.
box artifacts does the same.`
	list.Example = "  box artifacts list --limit 0 --jsonl"
	cmd.AddCommand(list, a.artifactsShowCommand(), a.artifactsGetCommand(), a.artifactsVerifyCommand(), a.artifactsCollectCommand())
	return cmd
}

// artifactList is a command that lists artifacts.
func (a *app) artifactList(use string, args cobra.PositionalArgs) *cobra.Command {
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:  use,
		Args: args,
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			t := newTable("DIGEST", "BYTES", "KIND", "BY", "PUBLISHED", "NAME")
			return a.listing(ctx, c, lister{
				route: routeArtifacts, member: "artifacts", after: after, limit: limit, table: t,
				row: func(t *table, raw json.RawMessage) error {
					var l artifactListing
					if err := decode(raw, &l); err != nil {
						return err
					}
					t.row(l.Digest, strconv.FormatInt(l.Bytes, 10), l.Kind, l.By.ID, stamp(l.CreatedAt), l.Name)
					return nil
				},
			})
		}),
	}
	a.pages(cmd, &limit, &after)
	return a.speaks(cmd)
}

// artifactShowing is an artifact as GET /v1/artifacts/{digest} shows it.
type artifactShowing struct {
	Digest    string               `json:"digest"`
	Bytes     int64                `json:"bytes"`
	Published []artifactListing    `json:"published"`
	Attested  []attestationListing `json:"attested"`
}

func (a *app) artifactsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show DIGEST",
		Short: "Show who published some bytes, as what, and what was signed of them",
		Long: `Show what is known of the bytes of a digest: how many there are, each time that a call
published them or a run left them, the newest first, as far as you may see it, and what
workers have signed of them. box artifacts verify DIGEST proves that.`,
		Example:           "  box artifacts show sha256:9f86…",
		Args:              exactly("the digest"),
		ValidArgsFunction: a.completeIDs(routeArtifacts, "artifacts", "digest", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var got artifactShowing
			raw, err := c.get(ctx, request{route: routeArtifact, names: args}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			if err := a.printf("%-10s%s\n%-10s%d\n\n", "digest", clean(got.Digest), "bytes", got.Bytes); err != nil {
				return err
			}
			t := newTable("KIND", "BY", "PUBLISHED", "FROM", "NAME")
			for _, p := range got.Published {
				t.row(p.Kind, p.By.ID, stamp(p.CreatedAt), p.Call+p.Run, p.Name) // it has one of them
			}
			if err := a.print(t); err != nil || len(got.Attested) == 0 {
				return err
			}
			if err := a.printf("\n"); err != nil {
				return err
			}
			t = newTable("SIGNED BY", "RUN", "REVISION", "CAPTURED", "TEST", "NAME")
			for _, l := range got.Attested {
				t.row(l.Producer, l.Run, l.Revision, stamp(l.CapturedAt), l.tested(), l.Name)
			}
			return a.print(t)
		}),
	}
	return a.speaks(cmd)
}

func (a *app) artifactsGetCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "get DIGEST",
		Short: "Get the bytes of an artifact",
		Long: `Get the bytes of an artifact and check them against its digest. With -o they replace
FILE, which is all of them or what it was before (mode 0600). Without it they go to
standard output, but not to a terminal, which they could take over; the exit code then
says whether what was written is whole and right.`,
		Example: `  box artifacts get sha256:9f86… -o report.txt
  box artifacts get sha256:9f86… | tar -t`,
		Args:              exactly("the digest"),
		ValidArgsFunction: a.completeIDs(routeArtifacts, "artifacts", "digest", "name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			toOutput := output == "" || output == "-"
			if _, tty := terminal(a.out); tty && toOutput {
				return usagef("the bytes could be anything, and standard output is a terminal; give -o FILE, or pipe them")
			}
			if toOutput && (a.json || a.jsonl) {
				return usagef("--json and --jsonl go with -o FILE: standard output has the bytes themselves")
			}
			return a.asking(func(ctx context.Context, c *client, args []string) error {
				if toOutput {
					_, err := c.artifact(ctx, args[0], a.out)
					return err
				}
				n, err := c.artifactFile(ctx, args[0], output)
				if err != nil || !a.json && !a.jsonl {
					return err
				}
				return a.document(map[string]any{"digest": args[0], "bytes": n, "file": output})
			})(cmd, args)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write to this file, whole or not at all; - is standard output")
	return a.speaks(cmd)
}

// artifact writes the bytes of digest to w and returns how many there are. It is an
// error if they are not all or not right.
func (c *client) artifact(ctx context.Context, digest string, w io.Writer) (int64, error) {
	r := request{route: routeArtifactBytes, names: []string{digest}, head: http.Header{"Accept": {"application/octet-stream, application/problem+json"}}}
	resp, err := c.send(ctx, r, nil)
	if err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, c.unreachable(err, r)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _, err := readBounded(resp.Body, 1<<20)
		if err != nil {
			return 0, c.unreachable(err, r)
		}
		return 0, asFault(answer{status: resp.StatusCode, body: b})
	}
	hash := sha256.New()
	in := &metered{Reader: io.TeeReader(resp.Body, hash)}
	if _, err := io.Copy(w, in); err != nil {
		if in.err == nil {
			return 0, err // of w
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("the bytes broke off: %w", in.err),
			hint: "the connection was lost, or what the gateway has is damaged: box artifacts verify"}
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != digest {
		return 0, &exitError{code: ops.ExitFailed, err: fmt.Errorf("what came is %s", got)}
	}
	return in.n, nil
}

// metered counts what is read and keeps the error that ended it.
type metered struct {
	io.Reader
	n   int64
	err error
}

func (c *metered) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// artifactFile puts the bytes of digest in the place of path, whole or not at all. What
// stands there and is no file, such as a device, keeps its place.
func (c *client) artifactFile(ctx context.Context, digest, path string) (n int64, err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return 0, usagef("%s is no regular file; give another, or none, and redirect the output", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if n, err = c.artifact(ctx, digest, f); err != nil {
		return 0, err
	}
	for _, step := range []func() error{
		f.Sync, f.Close,
		func() error { return os.Rename(f.Name(), path) },
		func() error { return syncFolder(filepath.Dir(path)) },
	} {
		if err = step(); err != nil {
			return 0, fmt.Errorf("write %s: %w", path, err)
		}
	}
	return n, nil
}

func (a *app) artifactsVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [DIGEST]",
		Short: "Prove what was signed of one artifact, or have the gateway check all bytes",
		Long: `With a digest: get the bytes, compare them with it, and prove what workers have signed
of them, each with the key that the worker is enrolled with. The exit code is 1 if the
bytes or a signature are not right, or a key cannot be had. Nothing the gateway says of
an attestation is believed; that a key is the worker's is.

Without one: have the gateway read the bytes of every artifact and compare them with
their digest. What is gone or damaged is listed, and the exit code is 1: restore those
files from a backup of the state folder's artifacts/. Operators only.`,
		Example: `  box artifacts verify
  box artifacts verify sha256:9f86…
  box artifacts verify --json`,
		Args:              atMost(1),
		ValidArgsFunction: a.completeIDs(routeArtifacts, "artifacts", "digest", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			if len(args) == 1 {
				return a.verifyArtifact(ctx, c, args[0])
			}
			var got struct {
				Artifacts int `json:"artifacts"`
				Found     []struct {
					Digest string `json:"digest"`
					What   string `json:"what"`
				} `json:"found"`
				Usage struct {
					Bytes int64 `json:"bytes"`
					Quota int64 `json:"quota"`
				} `json:"usage"`
			}
			raw, err := c.get(ctx, request{route: routeVerifyArtifacts, again: true}, &got)
			if err != nil {
				return err
			}
			switch {
			case a.json || a.jsonl:
				err = a.document(raw)
			case len(got.Found) > 0:
				t := newTable("DIGEST", "WHAT")
				for _, f := range got.Found {
					t.row(f.Digest, f.What)
				}
				err = a.print(t)
			default:
				err = a.printf("%s, all as they were published; %s of %s taken\n",
					count(int64(got.Artifacts), "artifact"), size(got.Usage.Bytes), size(got.Usage.Quota))
			}
			if err == nil && len(got.Found) > 0 {
				err = &exitError{code: ops.ExitFailed, err: fmt.Errorf("%s gone or damaged", count(int64(len(got.Found)), "artifact"))}
			}
			return err
		}),
	}
	return a.speaks(cmd)
}

// proved is what came of one attestation.
type proved struct {
	Name      string               `json:"name"`
	Run       string               `json:"run"`
	Producer  string               `json:"producer"`
	Key       string               `json:"key"`
	Proved    bool                 `json:"proved"`
	Why       string               `json:"why,omitempty"` // it is not
	Statement *artifacts.Statement `json:"statement,omitempty"`
}

// verifyArtifact compares the bytes of digest with it and proves what was signed of them.
func (a *app) verifyArtifact(ctx context.Context, c *client, digest string) error {
	var got artifactShowing
	if _, err := c.get(ctx, request{route: routeArtifact, names: []string{digest}}, &got); err != nil {
		return err
	}
	n, err := c.artifact(ctx, digest, io.Discard)
	if err != nil {
		return err
	}
	report := struct {
		Digest   string   `json:"digest"`
		Bytes    int64    `json:"bytes"`
		OK       bool     `json:"ok"`
		Attested []proved `json:"attested"`
	}{digest, n, true, []proved{}}
	keys := make(map[string]ed25519.PublicKey)
	t := newTable("SIGNED BY", "RUN", "PROVED", "TEST", "NAME")
	wrong := 0
	for _, l := range got.Attested {
		p := proved{Name: l.Name, Run: l.Run, Producer: l.Producer, Key: l.Key}
		key, err := c.workerKey(ctx, keys, l.Producer)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			p.Statement, err = prove(l, digest, key)
		}
		says := "yes"
		if p.Proved = err == nil; !p.Proved {
			p.Why, report.OK = err.Error(), false
			says = "NO: " + p.Why
			wrong++
		}
		report.Attested = append(report.Attested, p)
		t.row(l.Producer, l.Run, says, l.tested(), l.Name)
	}
	switch {
	case a.json || a.jsonl:
		err = a.document(report)
	default:
		if err = a.printf("%s, as the digest says; %s\n", count(n, "byte"), count(int64(len(got.Attested)), "attestation")); err == nil && len(got.Attested) > 0 {
			err = a.print(t)
		}
	}
	if err == nil && wrong > 0 {
		err = &exitError{code: ops.ExitFailed, err: fmt.Errorf("%s not proved", count(int64(wrong), "attestation"))}
	}
	return err
}

// workerKey is the key that a worker is enrolled with.
func (c *client) workerKey(ctx context.Context, known map[string]ed25519.PublicKey, worker string) (ed25519.PublicKey, error) {
	if key, ok := known[worker]; ok {
		return key, nil
	}
	var w struct {
		PublicKey ed25519.PublicKey `json:"public_key"`
	}
	if _, err := c.get(ctx, request{route: routeWorker, names: []string{worker}}, &w); err != nil {
		return nil, fmt.Errorf("its key cannot be had: %w", err)
	}
	known[worker] = w.PublicKey
	return w.PublicKey, nil
}

// prove proves that l is signed by key and says what is listed of it, about the bytes of
// digest.
func prove(l attestationListing, digest string, key ed25519.PublicKey) (*artifacts.Statement, error) {
	s, err := wire.Read(l.Envelope, artifacts.MaxStatement)
	if err != nil {
		return nil, err
	}
	if s.Type != artifacts.AttestationType {
		return nil, errors.New("it is signed as something else")
	}
	if err := s.Prove(key); err != nil {
		return nil, err
	}
	st, err := artifacts.ReadStatement(s.Payload)
	if err != nil {
		return nil, err
	}
	p := st.Predicate
	listed := attestationListing{Name: l.Name, Run: l.Run, Producer: l.Producer, Fence: l.Fence, Key: l.Key}
	if string(st.Digest()) != digest {
		return nil, errors.New("it is about other bytes")
	}
	if said := (attestationListing{Name: st.Name(), Run: p.Run, Producer: string(p.Producer), Fence: p.Fence, Key: s.KeyID}); !reflect.DeepEqual(said, listed) {
		return nil, errors.New("it does not say what the gateway lists of it")
	}
	return &st, nil
}

func (a *app) artifactsCollectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Remove bytes that nothing names, and uploads that are over",
		Long: `Remove kept bytes that nothing in the journal names and that are a day old, such as those
of a call that failed after it had kept some, and uploads whose 24 hours are over. The
gateway does the same every hour by itself. Operators only.`,
		Example: "  box artifacts collect",
		Args:    exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			var got struct {
				Files   int64 `json:"files"`
				Uploads int64 `json:"uploads"`
				Bytes   int64 `json:"bytes"`
				Usage   struct {
					Bytes int64 `json:"bytes"`
					Quota int64 `json:"quota"`
				} `json:"usage"`
			}
			raw, err := c.get(ctx, request{route: routeCollectArtifacts, again: true}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("removed %s and %s: %s; %s of %s taken\n", count(got.Files, "file"), count(got.Uploads, "upload"),
				size(got.Bytes), size(got.Usage.Bytes), size(got.Usage.Quota))
		}),
	}
	return a.speaks(cmd)
}

// sizeUnits are those of op files.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// size writes a number of bytes for people, with at most one decimal.
func size(bytes int64) string {
	for _, u := range sizeUnits {
		if bytes >= u.bytes {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/float64(u.bytes)), ".0") + " " + u.name
		}
	}
	return "0 B"
}

// sizeFlag is a positive number of bytes, as op files write it: 512MiB.
type sizeFlag int64

// Set reads a size.
func (s *sizeFlag) Set(text string) error {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || n > math.MaxInt64/u.bytes || digits[0] == '+' {
			break
		}
		*s = sizeFlag(n * u.bytes)
		return nil
	}
	return errors.New("want a number with B, KiB, MiB or GiB, such as 512MiB")
}

// String writes it so that Set reads it.
func (s *sizeFlag) String() string {
	for _, u := range sizeUnits {
		if int64(*s)%u.bytes == 0 && *s > 0 {
			return strconv.FormatInt(int64(*s)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// Type names it in the help.
func (*sizeFlag) Type() string { return "size" }
