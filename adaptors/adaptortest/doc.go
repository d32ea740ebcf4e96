// Package adaptortest is the suite that every adaptor of a chat passes.
//
// An adaptor brings a [Harness]: a real server of its platform, which keeps its own
// messages, and the ways to have people write there and to have it misbehave. [Run] puts
// real threads, a real door and a real store on it, and tries what has gone wrong in
// other gateways: the cases of vectors/thread-cases.json that are about adaptors, each by
// its id. It looks at what stands on the platform, not at what the adaptor says.
package adaptortest
