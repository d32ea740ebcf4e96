//go:build !race

package plane

const raced = false
