package main

import (
	"github.com/spf13/cobra"

	"inband/ops"
)

func (a *app) verifierCommand() *cobra.Command {
	var m memberFlags
	cmd := &cobra.Command{
		Use:   "verifier [flags] [-- COMMAND [WORD...]]",
		Short: "Judge what the workers of a gateway's execution plane return",
		Long: `Judge what workers return: another identity than any worker, which reads the files that
were returned by their digests, looks at what was attested of them, and runs the test
that the work declares in a sandbox of its own. Its verdict is signed. Only what it says
passed completes a piece of work.

  passed            every file that must be there is, is what its digest says and is
                    attested; and the declared test exits with 0
  failed            the test exits with another code, or does not end in time
  evidence_missing  a file or its attestation is not there, or the test cannot be begun

The test finds the source in its working folder with the returned files laid over it, and
the returned files alone in $INBAND_RETURNED. Work that declares no test is judged by
COMMAND, if there is one, which finds the instruction in $INBAND_TASK; else by its files.

With --dry-run nothing is run. Digests, sizes and attestations are compared, and the
verdict says so: work that declares a test is evidence_missing then.
` + memberHelp,
		Example: `  box verifier --token-file judge.invitation
  box verifier --token-file judge.invitation -- ./review.sh
  box verifier --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.member(cmd, args, ops.Verifier, &m) },
	}
	a.memberFlags(cmd, &m)
	cmd.Flags().BoolVar(&m.dryRun, "dry-run", false, "compare digests, sizes and attestations, and run nothing")
	return cmd
}
