package main

import (
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"

	"inband/ops"
)

func (a *app) dmCommand() *cobra.Command {
	var thread, id string
	cmd := &cobra.Command{
		Use:   "dm TO [TEXT…|-]",
		Short: "Write to an agent or a room",
		Long: `Write to an agent, or to a room as #NAME (quoted, since # begins a comment in a
shell). The text is the rest of the line, or standard input when there is none or it
is -. This runs the op dm.send.`,
		Example: `  box dm ada the build is green
  box dm '#ops' - < note.txt
  box dm '#ops' --thread t-01k9… and now it is red again`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("whom to: an identity, or a room as '#NAME'")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := a.patient(cmd.Context())
			defer cancel()
			text := strings.Join(args[1:], " ")
			if text == "" || text == "-" {
				b, whole, err := a.readInput(ctx, "-", ops.MaxText)
				if err != nil {
					return err
				}
				if !whole {
					return ops.Faultf(ops.TooLarge, "standard input holds more than the %d bytes that a message may have", ops.MaxText).With("max", ops.MaxText)
				}
				text = strings.TrimSuffix(string(b), "\n")
			}
			if strings.TrimSpace(text) == "" {
				return usagef("the message is empty")
			}
			params, err := json.Marshal(struct {
				To     string `json:"to"`
				Text   string `json:"text"`
				Thread string `json:"thread,omitempty"`
			}{args[0], text, thread})
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.close()
			return a.exec(ctx, c, order{op: string(ops.DMSend().Name), params: params, id: id}, false, false)
		},
	}
	cmd.Flags().StringVar(&thread, "thread", "", "a thread of that room (default: a new one)")
	cmd.Flags().StringVar(&id, "id", "", "idempotency key (default: a fresh one)")
	return a.speaks(cmd)
}
