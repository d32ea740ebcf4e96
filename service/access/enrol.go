package access

import (
	"context"

	"inband/ops"
	"inband/service/journal"
)

// Enrol has a bridge hand in the replies of further agents, beside those that Add has
// named. An agent that it is enrolled for already stays so. A bridge that does not exist
// or is revoked is NotFound; an identity that is no bridge, and an agent that is none, is
// a BadRequest, and then nothing changes.
func (d *Directory) Enrol(ctx context.Context, bridge ops.IdentityID, agents ...ops.IdentityID) error {
	return d.store.Update(ctx, func(tx journal.Tx) error {
		who, live, err := Live(tx, bridge)
		switch {
		case err != nil:
			return err
		case !live:
			return unknownIdentity(bridge)
		case who.Role != ops.Bridge:
			return ops.Faultf(ops.BadRequest, "only a bridge has agents, and %s is no bridge", bridge)
		}
		var further []ops.IdentityID
		for _, agent := range agents {
			got, err := identity(tx, agent)
			if err != nil {
				return err
			}
			if got.Role != ops.Agent {
				return ops.Faultf(ops.BadRequest, "there is no agent %q to enrol", clip(string(agent)))
			}
			n, err := tx.Exec(`INSERT INTO enrolment (bridge, agent) VALUES ($1, $2) ON CONFLICT DO NOTHING`, string(bridge), string(agent))
			if err != nil {
				return err
			}
			if n > 0 {
				further = append(further, agent)
			}
		}
		if len(further) == 0 {
			return nil
		}
		return event(tx, bridge, "agent.enrolled", struct {
			ID     ops.IdentityID   `json:"id"`
			Agents []ops.IdentityID `json:"agents"`
		}{bridge, further})
	})
}
