package task

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"inband/exec/proc"
	"inband/ops"
)

// Secret is the value of a credential.
type Secret struct {
	Ref   ops.CredentialRef
	Value []byte
}

// String names the secret and does not tell it.
func (s Secret) String() string { return "[secret " + string(s.Ref) + "]" }

// GoString is String.
func (s Secret) GoString() string { return s.String() }

func values(secrets []Secret) map[ops.CredentialRef][]byte {
	all := map[ops.CredentialRef][]byte{}
	for _, s := range secrets {
		all[s.Ref] = s.Value
	}
	return all
}

// inMemory is where the folders of secrets are made: a file system in memory.
const inMemory = "/dev/shm"

// secretsFolder is where the secrets of a run are, which is known from the run's folder
// alone: after a crash they are found and removed.
func secretsFolder(folder string) string {
	sum := sha256.Sum256([]byte(folder))
	return filepath.Join(inMemory, "inband-secrets-"+hex.EncodeToString(sum[:16]))
}

// keepSecrets makes the folder of a run's secrets and gives it to owner, "" if there are
// none. They are on no disk (but that of swapped memory).
func keepSecrets(folder string, secrets []Secret, owner *proc.Owner) (dir string, err error) {
	if len(secrets) == 0 {
		return "", nil
	}
	dir = secretsFolder(folder)
	if err := memoryOnly(inMemory); err != nil {
		return "", fmt.Errorf("secrets: %w", err)
	}
	if err := dropSecrets(folder); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("secrets: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dropSecrets(folder))
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("secrets: %w", err)
	}
	defer root.Close()
	names := []string{"."}
	for _, s := range secrets {
		_, name, _ := strings.Cut(string(s.Ref), ":")
		if !s.Ref.Valid() || name == "." || name == ".." {
			return "", fmt.Errorf("secrets: %q is no reference to one", s.Ref)
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("secrets: two are called %s", name)
		} else if err != nil {
			return "", fmt.Errorf("secrets: %w", err)
		}
		_, err = f.Write(s.Value)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", fmt.Errorf("secrets: %w", err)
		}
		names = append(names, name)
	}
	for _, name := range names {
		if owner == nil {
			break
		}
		if err := root.Lchown(name, int(owner.UID), int(owner.GID)); err != nil {
			return "", fmt.Errorf("secrets: %w", err)
		}
	}
	return dir, nil
}

// dropSecrets removes the secrets of a run.
func dropSecrets(folder string) error {
	if err := os.RemoveAll(secretsFolder(folder)); err != nil {
		return fmt.Errorf("remove the secrets of a run: %w", err)
	}
	return nil
}
