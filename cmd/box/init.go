package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"inband/adaptors/httpapi"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/threads"
	"inband/service/timers"
)

// made is a thing that box has made in a state folder.
type made struct{ what, path string }

func (a *app) initCommand() *cobra.Command {
	var operator string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a state folder",
		Long: `Make what a gateway needs in its state folder: the journal, the certificate authority
and the gateway's certificate, the op files that come with box (ops.d), the policy
(policy.cedar), and the first operator with a token. What is there already stays as it
is. The first box serve does the same, so init is for looking before starting.

--operator NAME makes another operator, for when operator.token is lost: what is left
of that file must be moved away first, and no gateway may be running.`,
		Example: `  box init
  box init --state /var/lib/inband --host box.example.org
  box init --operator operator-2`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := a.folder()
			if err != nil {
				return err
			}
			store, err := openState(cmd.Context(), folder, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			done, err := prepareState(cmd.Context(), folder, access.NewDirectory(store), operator)
			if err == nil && changed(cmd.Flags(), "operator") && len(done) == 0 {
				err = ops.Faultf(ops.Conflict, "%s is there already; move it away first, and give a new name to --operator", folder.token())
			}
			if err == nil {
				_, _, err = httpapi.LoadOrMakeCA(folder.tls(), hosts)
			}
			if err := errors.Join(err, store.Close()); err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(map[string]string{
					"state": string(folder), "journal": folder.journal(), "ca": folder.ca(), "ops": folder.ops(), "policy": folder.policy(), "token": folder.token(),
				})
			}
			t := newTable("WHAT", "WHERE")
			t.row("state folder", string(folder))
			t.row("journal", folder.journal())
			t.row("certificate authority", folder.ca())
			t.row("op files", folder.ops())
			t.row("policy", folder.policy())
			t.row("operator's token", folder.token())
			if err := a.print(t); err != nil {
				return err
			}
			a.notice("start the gateway with: box serve")
			return nil
		},
	}
	cmd.Flags().StringVar(&operator, "operator", "operator", "name of the operator to make")
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "a further name of this gateway, for its certificate (may be repeated)")
	return a.prints(cmd)
}

// openState opens the store of a state folder, which is made if it does not exist.
func openState(ctx context.Context, folder stateFolder, log *slog.Logger) (*sqlite.Store, error) {
	if err := folder.whole(); err != nil {
		return nil, err
	}
	for _, dir := range []string{string(folder), folder.tls()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make state folder: %w", err)
		}
	}
	info, err := os.Stat(string(folder))
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o002 != 0 { // and so put its own policy and ops in the place of ours
		return nil, fmt.Errorf("state folder %s: anybody may write to it; chmod o-w it", folder)
	}
	return sqlite.Open(ctx, sqlite.Config{
		Path:    folder.journal(),
		Schemas: schemas(),
		Logger:  log,
	})
}

// schemas are those of every feature, in the order of migration.
func schemas() []journal.Schema {
	return []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()}
}

// prepareState makes the op files, the policy and the operator if they are missing, and says what
// it made. The caller owns the store, so nobody else does the same meanwhile.
func prepareState(ctx context.Context, folder stateFolder, directory *access.Directory, operator string) ([]made, error) {
	var done []made
	wrote, err := ensureOpFiles(folder.ops())
	if err != nil {
		return nil, err
	}
	if wrote {
		done = append(done, made{"op files", folder.ops()})
	}
	wrote, err = ensurePolicy(folder.policy())
	if err != nil {
		return nil, err
	}
	if wrote {
		done = append(done, made{"policy", folder.policy()})
	}
	wrote, err = ensureCredentials(folder.credentials())
	if err != nil {
		return nil, err
	}
	if wrote {
		done = append(done, made{"folder of credentials", folder.credentials()})
	}
	wrote, err = ensureOperator(ctx, folder.token(), directory, ops.IdentityID(operator))
	if err != nil {
		return nil, err
	}
	if wrote {
		done = append(done, made{"operator's token", folder.token()})
	}
	return done, nil
}

// ensureOperator makes the identity id with its token in a file, when there is no such
// file. An identity that exists without its file stays: its token cannot be had again.
func ensureOperator(ctx context.Context, path string, directory *access.Directory, id ops.IdentityID) (bool, error) {
	// An empty file is what a crash leaves between the two writes below.
	if info, err := os.Lstat(path); err == nil && info.Size() > 0 {
		return false, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("operator's token: %w", err)
	}
	// The file is tried first: a token that cannot be kept must not be made.
	if err := writePrivate(path, nil); err != nil {
		return false, err
	}
	token, err := directory.Add(ctx, ops.Identity{ID: id, Role: ops.Operator})
	if err != nil {
		err = errors.Join(err, os.Remove(path))
		var fault *ops.Fault
		if errors.As(err, &fault) && fault.Code == ops.Conflict {
			return false, nil
		}
		return false, err
	}
	return true, writePrivate(path, []byte(token+"\n"))
}
