package service

// Standing returns how many calls that a hold over scope is about have not begun and how
// many run. Calls that wait for an approval are neither.
func (d *Door) Standing(scope string) (waiting, running int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.tasks {
		thread, ok := holdable(t.call)
		switch {
		case !ok || scope != Everything && scope != thread:
		case t.began.Load():
			running++
		default:
			waiting++
		}
	}
	return waiting, running
}
