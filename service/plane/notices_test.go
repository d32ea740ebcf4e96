package plane

import (
	"inband/ops"
	"inband/service/journal"
)

func (s *said) Begun(_ journal.Tx, _ ops.Call, delegation string) error {
	s.begun = append(s.begun, delegation)
	return nil
}
