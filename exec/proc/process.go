package proc

// Process names one process for good. A pid comes again, and so does a time of start once
// the machine has been started anew; the two with the machine's boot do not.
type Process struct {
	PID int
	// Start is when it was started, in ticks of this boot of the machine, "@" and the
	// boot's id.
	Start string
}
