package main

import (
	"context"
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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/exec/command"
	"inband/ops"
	"inband/service/artifacts"
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
	By        identity  `json:"by"`
	CreatedAt time.Time `json:"created_at"`
}

func (a *app) artifactsCommand() *cobra.Command {
	cmd := a.artifactList("artifacts", a.subcommandOnly)
	cmd.Short = "List published files, newest first; show, get or verify one"
	cmd.Long = `List the files that calls have published, newest first. An op publishes files when its
op file says so (publish); their bytes are kept in the state folder under their digest,
sha256 of the bytes. Who may read a call's output may read what it published.`
	cmd.Example = `  box artifacts
  box artifacts --limit 500 --jsonl
  box artifacts get sha256:9f86… -o report.txt`
	list := a.artifactList("list", exactly())
	list.Short = "List published files, newest first"
	list.Long = "List the files that calls have published, newest first. box artifacts does the same."
	list.Example = "  box artifacts list --limit 0 --jsonl"
	cmd.AddCommand(list, a.artifactsShowCommand(), a.artifactsGetCommand(), a.artifactsVerifyCommand())
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

func (a *app) artifactsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show DIGEST",
		Short: "Show who published some bytes, and as what",
		Long: `Show what is known of the bytes of a digest: how many there are, and each time that a
call published them, the newest first, as far as you may see it.`,
		Example:           "  box artifacts show sha256:9f86…",
		Args:              exactly("the digest"),
		ValidArgsFunction: a.completeIDs(routeArtifacts, "artifacts", "digest", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var got struct {
				Digest    string            `json:"digest"`
				Bytes     int64             `json:"bytes"`
				Published []artifactListing `json:"published"`
			}
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
			t := newTable("KIND", "BY", "PUBLISHED", "CALL", "NAME")
			for _, p := range got.Published {
				t.row(p.Kind, p.By.ID, stamp(p.CreatedAt), p.Call, p.Name)
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
		Use:   "verify",
		Short: "Have the gateway read every artifact and compare it with its digest",
		Long: `Have the gateway read the bytes of every artifact and compare them with their digest.
What is gone or damaged is listed, and the exit code is 1: restore those files from a
backup of the state folder's artifacts/. Operators only.`,
		Example: `  box artifacts verify
  box artifacts verify --json`,
		Args: exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
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
