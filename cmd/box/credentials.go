package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"inband/exec/command"
	"inband/ops"
)

// takeCredentials makes the credentials that ops may refer to, beside those of the state
// folder: the service manager's, and the variables of the environment that are named.
// These leave the environment, so that neither a child nor whoever may read that
// of this process finds them there.
func takeCredentials(names []string, log *slog.Logger) (command.Credentials, error) {
	c := command.Credentials{System: os.Getenv("CREDENTIALS_DIRECTORY"), Env: map[string]string{}}
	for _, name := range names {
		if !ops.CredentialRef("env:" + name).Valid() {
			return c, usagef("--credential-env %q: want a name of letters, digits, _, . and -", name)
		}
		value, ok := os.LookupEnv(name)
		if !ok {
			return c, usagef("--credential-env %s: there is no such variable", name)
		}
		c.Env[name] = value
	}
	if len(names) == 0 {
		return c, nil
	}
	for _, name := range names {
		if err := os.Unsetenv(name); err != nil {
			return c, fmt.Errorf("--credential-env %s: %w", name, err)
		}
	}
	if err := wipeEnvironment(names); err != nil {
		log.Warn("credentials stay readable in /proc of this process; give them as files", "why", err)
	}
	return c, nil
}

// wipeEnvironment overwrites the values of variables where the kernel has put them for
// this process and shows them in /proc/PID/environ. Unsetenv knows copies only.
func wipeEnvironment(names []string) error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	// The name of the program may hold spaces and brackets; the fields behind it are
	// counted from 3 (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const start, end = 50 - 3, 51 - 3 // env_start, env_end
	if len(fields) <= end {
		return errors.New("/proc/self/stat does not say where the environment is")
	}
	from, badFrom := strconv.ParseInt(fields[start], 10, 64)
	to, badTo := strconv.ParseInt(fields[end], 10, 64)
	const most = 8 << 20 // more than the kernel lets an environment be
	if err := errors.Join(badFrom, badTo); err != nil || from <= 0 || to < from || to-from > most {
		return fmt.Errorf("/proc/self/stat puts the environment at %s to %s", fields[start], fields[end])
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	environment := make([]byte, to-from)
	if _, err := memory.ReadAt(environment, from); err != nil {
		return err
	}
	for at := 0; at < len(environment); {
		variable, _, _ := bytes.Cut(environment[at:], []byte{0})
		for _, name := range names {
			if value, ok := bytes.CutPrefix(variable, []byte(name+"=")); ok {
				if _, err := memory.WriteAt(make([]byte, len(value)), from+int64(at+len(variable)-len(value))); err != nil {
					return err
				}
			}
		}
		at += len(variable) + 1
	}
	return nil
}

// ensureCredentials makes the folder of credentials. One that exists is the operator's;
// that it is closed to others is looked at with each credential.
func ensureCredentials(dir string) (bool, error) {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("make the folder of credentials: %w", err)
	}
	return true, nil
}
