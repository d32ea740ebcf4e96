// Package failpoint marks the places where a crash is most interesting.
//
// A mark costs nothing in a normal build: [Here] is an empty function that the
// compiler removes. Built with the tag failpoint, the process kills itself with
// SIGKILL at the mark that INBAND_FAILPOINT names, as "NAME" or "NAME:N" for the
// Nth time it is reached, so that a test can prove what a real kill at that
// moment leaves behind. Nothing else reads the variable, and no released binary
// carries the tag.
//
// Names are FOLDER.MOMENT, for example "door.intent-written".
package failpoint
