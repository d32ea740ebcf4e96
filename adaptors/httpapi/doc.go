// Package httpapi is the gateway's HTTPS entrance: POST /exec, everything under
// /v1, the two health checks and the OpenAPI 3.1 document that describes them.
//
// It translates and decides nothing: a body becomes an [ops.Call] for the door or a
// reply for the threads, a read goes to the same reads that box.exec uses, and what
// comes back is written as JSON. Whether somebody may do something is decided
// behind it, by package access.
//
// # What it refuses
//
// A request is read strictly, and refused before anything is done with it. Members
// that occur twice, that differ from a known name by case only, or that nobody
// knows; null where a value belongs; invalid UTF-8; bytes behind the end; query
// parameters that are unknown, empty or given twice; a second Authorization header;
// a body that is not declared as application/json, is compressed, or is longer than
// its bound; a Host that is not this gateway's, and any other site's Origin; a path
// that is not spelt exactly like its route. TLS below 1.3 is not spoken.
//
// Every refusal is one fault as problem+json (RFC 9457), with the members code,
// message, retryable and details that a fault has everywhere else. It names the
// place, by JSON Pointer and byte, and never repeats a value: a token that is sent
// in the wrong place must not come back in an error.
//
// # Words
//
//   - Route: a method and a path. The OpenAPI document lists exactly those that the
//     router knows.
//   - Guard: what every route's requests pass before huma sees them. huma by itself
//     would take the first of repeated parameters, ignore unknown ones, accept
//     repeated and misspelt members, and repeat values in its errors.
//   - Stream: one client of /v1/events.
//   - Lane: places for one kind of requests. Those of workers, their polls and those of
//     strangers have each their own, so that no kind keeps another out.
//   - Final: said, in details, of a fault that an envelope gets however often it is sent.
//
// # Waiting
//
// Every wait has a bound in [Limits]. A client that sends slowly, or does not read
// what it asked for, loses its connection and delays nobody. A caller that waits for
// its call and hangs up cancels it, unless it asked for respond-async. A stop ends
// the streams, and waits for the requests under way until its context ends.
package httpapi
