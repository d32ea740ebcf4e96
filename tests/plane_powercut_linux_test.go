package tests

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/plane/wire"
	"inband/tests/powercut"
)

// cutEnv tells the test binary to be a plane on the folder that it names, until it is killed.
const cutEnv = "INBAND_PLANE_CUT_FOLDER"

// TestPlanePowerCut cuts the power under a plane that is at work, on a disk that forgets what
// was not synced: after each cut the store opens, and holds all that anybody was told.
//
//   - Whatever message was acknowledged is there under its subject and number, with its
//     digest, and its run or verification is not behind it.
//   - A lease that was granted is one of the delegation's, with a fence no smaller.
//   - A file that was said to be uploaded has its bytes.
//   - A call that was seen settled is settled the same way.
//   - Nothing is COMPLETED without a verification that has PASSED.
//
// Each life goes on with what the last one has left. INBAND_PLANE_CUTS sets the number of
// cuts; the default is the short form.
func TestPlanePowerCut(t *testing.T) {
	if folder := os.Getenv(cutEnv); folder != "" {
		if err := workUntilKilled(folder); err != nil {
			fmt.Println("broken", err)
		}
		return
	}
	cuts, lines := 4, 250 // that are said before a cut, at most
	if s := os.Getenv("INBAND_PLANE_CUTS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("INBAND_PLANE_CUTS=%q: want a number of at least 1", s)
		}
		cuts = n
	} else if testing.Short() {
		cuts, lines = 2, 100
	}
	seed := uint64(time.Now().UnixNano())
	dice := mathrand.New(mathrand.NewPCG(seed, 0))
	told := make(map[string]string) // line by what it is about; the last one counts
	count := make(map[string]int)
	from, syncs := "", 0
	for round := range cuts {
		at, to := filepath.Join(t.TempDir(), "disk"), filepath.Join(t.TempDir(), "left")
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		disk, err := powercut.Mount(at, from)
		if err != nil {
			if os.Getenv("INBAND_CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("needs FUSE and the right to mount: %v", err)
		}
		hearUntilCut(t, at, disk, 1+dice.IntN(lines), told, count)
		syncs += disk.Syncs()
		if err := disk.Cut(dice, to); err != nil {
			t.Fatal(err)
		}
		heldAfterCut(t, to, told)
		if t.Failed() {
			t.Fatalf("after cut %d of seed %d", round+1, seed)
		}
		if from != "" {
			_ = os.RemoveAll(from) // as large as the next one, and of no more use
		}
		from = to
	}
	fmt.Printf("plane power cuts: %d, in %d syncs; told: %v; none missing\n", cuts, syncs, count)
	for _, what := range []string{"granted", "acknowledged", "uploaded", "settled"} {
		if count[what] == 0 && cuts >= 4 {
			t.Errorf("nothing was %s, so that nothing was proved of it", what)
		}
	}
}

// hearUntilCut runs a plane on the folder at and keeps what it says, until it has said that many
// lines: then the power goes, and after it the process.
func hearUntilCut(t *testing.T, at string, disk *powercut.Disk, lines int, told map[string]string, count map[string]int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPlanePowerCut$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), cutEnv+"="+at)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		what, rest, _ := strings.Cut(scanner.Text(), " ")
		switch what {
		case "granted", "acknowledged", "uploaded", "settled":
			about, _, _ := strings.Cut(rest, " ")
			key := what + " " + about
			if what == "acknowledged" {
				key = rest // each counts, not the last
			}
			told[key] = scanner.Text()
			count[what]++
		case "broken":
			if lines > 0 {
				t.Errorf("the plane broke before the power went: %s", rest)
			}
		default: // of package testing
			continue
		}
		if lines--; lines == 0 {
			disk.Dead()
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ended = true
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Fatalf("the plane ended with %v", err)
	}
}

// heldAfterCut opens what a cut has left and holds it against what was told.
func heldAfterCut(t *testing.T, folder string, told map[string]string) {
	t.Helper()
	y, err := openCutYard(t.Context(), folder)
	if err != nil {
		t.Errorf("what is left does not open: %v", err)
		return
	}
	defer func() {
		if err := errors.Join(y.files.Close(), y.store.Close()); err != nil {
			t.Error(err)
		}
	}()
	err = y.store.View(t.Context(), func(tx journal.Tx) error {
		number := func(query string, args ...any) (n int64, err error) {
			err = tx.Query(query, func(scan func(...any) error) error { return scan(&n) }, args...)
			return n, err
		}
		for _, line := range told {
			f := strings.Fields(line)
			var n int64
			var err error
			switch f[0] {
			case "granted": // delegation, fence
				n, err = number(`SELECT count(*) FROM delegation WHERE id = $1 AND last_fence >= $2`, f[1], integer(f[2]))
			case "acknowledged": // subject, sequence, digest
				if n, err = number(`SELECT count(*) FROM callback WHERE subject = $1 AND seq = $2 AND digest = $3`, f[1], integer(f[2]), f[3]); err != nil || n != 1 {
					break
				}
				n, err = number(`SELECT (SELECT count(*) FROM dispatch WHERE run = $1 AND seq >= $2 AND state <> 'LEASED' AND state <> 'DISPATCHED')
					+ (SELECT count(*) FROM verification WHERE id = $1 AND seq >= $2)`, f[1], integer(f[2]))
				if err == nil && n == 1 && len(f) > 4 { // what the message has ended stays so
					n, err = number(`SELECT count(*) FROM delegation WHERE id = $1 AND state = $2`, f[4], f[5])
				}
			case "settled": // call, state
				n, err = number(`SELECT count(*) FROM call WHERE id = $1 AND state = $2 AND outcome IS NOT NULL`, f[1], f[2])
			case "uploaded": // digest, length, run
				if n, err = number(`SELECT count(*) FROM artifact WHERE digest = $1 AND run = $2 AND bytes = $3`, f[1], f[3], integer(f[2])); err != nil || n != 1 {
					break
				}
				if b, broken := y.bytes(artifacts.Digest(f[1])); broken != nil || wire.Digest(b) != f[1] {
					t.Errorf("%s: %d bytes, %v", line, len(b), broken)
				}
			}
			if err != nil {
				return err
			}
			if n != 1 {
				t.Errorf("it was told and does not hold: %s", line)
			}
		}
		n, err := number(`SELECT count(*) FROM delegation d WHERE state = 'COMPLETED' AND NOT EXISTS
			(SELECT 1 FROM verification v WHERE v.delegation = d.id AND v.state = 'PASSED')`)
		if n > 0 {
			t.Errorf("%d delegations are COMPLETED and nobody has passed them", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func integer(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return -1 // which nothing is
	}
	return n
}

// cutYard is a store with its artifacts, and a plane over both where there is one.
type cutYard struct {
	store *sqlite.Store
	files *artifacts.Store
	door  *service.Door
	plane *plane.Plane
	key   ed25519.PrivateKey
}

func openCutYard(ctx context.Context, folder string) (y *cutYard, err error) {
	y = &cutYard{key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
	if y.store, err = sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(folder, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), artifacts.Schema(), plane.Schema()}}); err != nil {
		return nil, err
	}
	if y.files, err = artifacts.Open(artifacts.Config{Folder: filepath.Join(folder, "artifacts")}); err != nil {
		return nil, errors.Join(err, y.store.Close())
	}
	return y, nil
}

func (y *cutYard) bytes(d artifacts.Digest) ([]byte, error) {
	f, err := y.files.Open(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

var cutOperator = ops.Identity{ID: "ada", Role: ops.Operator}

// workUntilKilled is a plane with workers and verifiers that have it do work, and says what
// each of them was told.
func workUntilKilled(folder string) error {
	ctx := context.Background()
	y, err := openCutYard(ctx, folder)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	empty, err := ops.New()
	if err != nil {
		return err
	}
	live, policy := ops.NewLive(empty), access.NewLivePolicy(access.DefaultPolicy())
	directory := access.NewDirectory(y.store)
	if y.door, err = service.New(service.Config{Store: y.store, Registry: live, Policy: policy, Log: log,
		MaxWaiting: 1000, RatePerIdentity: ops.Rate{Count: 1_000_000, Per: time.Second}}); err != nil {
		return err
	}
	if y.plane, err = plane.New(plane.Config{Store: y.store, Door: y.door, Directory: directory, Policy: policy, Artifacts: y.files, Key: y.key, Log: log,
		TTL: 3 * time.Second, Heartbeat: time.Second}); err != nil {
		return err
	}
	registry, err := ops.New(y.plane.Ops()...)
	if err != nil {
		return err
	}
	live.Swap(registry)
	if err := y.door.Start(ctx); err != nil {
		return err
	}
	if _, err := directory.Add(ctx, cutOperator); err != nil && !isFault(err, ops.Conflict) {
		return err
	}
	if err := y.plane.Start(ctx); err != nil {
		return err
	}
	if _, err := y.plane.Switch(ctx, cutOperator, plane.On); err != nil {
		return err
	}
	broke := make(chan error)
	for range 3 {
		go func() { broke <- y.spawner(ctx) }()
	}
	for role, n := range map[ops.Role]int{ops.Worker: 3, ops.Verifier: 2} {
		for range n {
			go func() { broke <- y.hand(ctx, role) }()
		}
	}
	return <-broke // whoever started this kills it
}

func isFault(err error, code ops.Code) bool {
	var f *ops.Fault
	return errors.As(err, &f) && f.Code == code
}

// spawner orders one delegation after the other and waits until it is settled.
func (y *cutYard) spawner(ctx context.Context) error {
	for {
		ticket, err := y.door.Submit(ctx, ops.Call{Op: "swarm.spawn", By: cutOperator, From: ops.Origin{Source: "api"},
			Params: json.RawMessage(`{"task":"Write a report.","artifacts":["report.txt"],"verify":{"command":["true"]}}`)})
		if err != nil {
			return fmt.Errorf("spawn: %w", err)
		}
		outcome, err := y.door.Await(ctx, ticket.Call)
		if err != nil {
			return fmt.Errorf("await %s: %w", ticket.Call, err)
		}
		fmt.Printf("settled %s %s\n", ticket.Call, outcome.State)
	}
}

// cutHand is a worker or verifier that speaks the signed protocol.
type cutHand struct {
	y    *cutYard
	who  ops.Identity
	key  ed25519.PrivateKey
	boot string
}

// hand enrols a new worker or verifier and has it do what it is granted.
func (y *cutYard) hand(ctx context.Context, role ops.Role) error {
	h := &cutHand{y: y, boot: ulid.Make().String()}
	h.who = ops.Identity{ID: ops.IdentityID(string(role) + "-" + strings.ToLower(h.boot)), Role: role}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	h.key = private
	invited, err := y.plane.Invite(ctx, cutOperator, plane.Invitation{Name: h.who.ID, Role: role, Implementations: []string{plane.StandardImplementation}})
	if err != nil {
		return fmt.Errorf("invite: %w", err)
	}
	envelope, _, err := wire.Seal(private, wire.KindEnrol, wire.Enrol{Token: invited.Token, PublicKey: public})
	if err != nil {
		return err
	}
	if _, err := y.plane.Enrol(ctx, envelope); err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	challenge, err := y.plane.Challenge(ctx, string(h.who.ID))
	if err != nil {
		return err
	}
	if envelope, _, err = wire.Seal(private, wire.KindBoot, wire.Boot{Worker: h.who.ID, Boot: h.boot, Challenge: challenge, Version: "test", Runs: []wire.BootRun{}}); err != nil {
		return err
	}
	if _, err := y.plane.Begin(ctx, envelope); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	for i := 0; ; i++ {
		envelope, err := y.plane.Poll(ctx, h.who, wire.Poll{Boot: h.boot, Nonce: fmt.Sprint(i), WaitMS: 1000})
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if envelope == nil {
			continue
		}
		s, err := wire.Read(envelope, wire.MaxGrant)
		if err != nil {
			return err
		}
		var g wire.Grant
		if err := s.Decode(wire.KindGrant, &g); err != nil {
			return err
		}
		if err := h.do(ctx, g); err != nil && !isFault(err, ops.StaleFence) { // a slow machine may lose a lease
			return err
		}
	}
}

// do does what g grants, and says so.
func (h *cutHand) do(ctx context.Context, g wire.Grant) error {
	header := g.Header
	say := func(k wire.Kind, body any, ends ...string) error {
		header.Seq, header.SentAt = header.Seq+1, time.Now()
		envelope, digest, err := wire.SealCallback(h.key, k, header, body)
		if err != nil {
			return err
		}
		ack, err := h.y.plane.Callback(ctx, h.who, envelope)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		if ack.Seq != header.Seq || ack.Digest != digest {
			return fmt.Errorf("%s %d %s was acknowledged as %+v", k, header.Seq, digest, ack)
		}
		header.Prev = digest
		fmt.Println("acknowledged", ack.Subject, ack.Seq, ack.Digest, strings.Join(ends, " ")) // one write a line
		return nil
	}
	if h.who.Role == ops.Verifier {
		if err := say(wire.KindStarted, wire.Started{}); err != nil {
			return err
		}
		return say(wire.KindVerdict, wire.Verdict{Verdict: plane.Passed, Command: g.Verify, Checked: g.Result.Files}, g.Delegation, string(plane.Completed))
	}
	fmt.Println("granted", g.Delegation, g.Fence)
	if err := say(wire.KindStarted, wire.Started{Process: &wire.Process{PID: 7, Start: "s7"}}); err != nil {
		return err
	}
	content := bytes.Repeat([]byte(g.Run+"\n"), 100+int(g.Fence%8)*200)
	file := wire.File{Name: "report.txt", Digest: wire.Digest(content), Bytes: int64(len(content)), Kind: "text/plain"}
	envelope, _, err := wire.Seal(h.key, wire.KindUpload, wire.Upload{Run: g.Run, Worker: h.who.ID, Boot: h.boot, File: file})
	if err != nil {
		return err
	}
	up, err := h.y.plane.Upload(ctx, h.who, envelope)
	for half := len(content) / 2; err == nil && !up.Done; {
		end := len(content)
		if up.Offset < int64(half) {
			end = half
		}
		up, err = h.y.plane.Append(ctx, h.who, up.Upload, up.Offset, bytes.NewReader(content[up.Offset:end]))
	}
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	fmt.Println("uploaded", file.Digest, file.Bytes, g.Run)
	statement, err := artifacts.NewStatement(file.Name, artifacts.Digest(file.Digest), artifacts.Predicate{
		Source: artifacts.Source{Revision: g.Source.Revision, Worktree: g.Source.Worktree}, Producer: h.who.ID, Run: g.Run, Fence: g.Fence,
		Test: &artifacts.Test{Command: g.Verify}, CapturedAt: time.Now(),
	}).Payload()
	if err != nil {
		return err
	}
	signed, err := wire.SealBytes(h.key, artifacts.AttestationType, statement)
	if err != nil {
		return err
	}
	process := &wire.Process{PID: 7, Start: "s7"}
	for _, m := range []struct {
		kind wire.Kind
		body any
	}{
		{wire.KindHeartbeat, wire.Heartbeat{Process: process, Alive: true, Progress: 1}},
		{wire.KindAttest, wire.Attest{Name: file.Name, Digest: file.Digest, Envelope: signed}},
		{wire.KindCheckpoint, wire.Checkpoint{Progress: 2, Files: []wire.File{file}}},
		{wire.KindResult, wire.Result{Succeeded: true, Summary: "done", Files: []wire.File{file}}},
	} {
		if err := say(m.kind, m.body); err != nil {
			return err
		}
	}
	return nil
}
