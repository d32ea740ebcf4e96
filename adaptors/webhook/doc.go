// Package webhook joins a chat to the gateway by signed HTTP: a bridge, which somebody
// runs beside a chat server, sends what is written there to
// POST /v1/adaptors/NAME/events and takes posts as JSON. It is the reference of the
// adaptor contract; docs/adaptors.md is written for whoever writes a bridge.
//
// # What it refuses
//
// An event that is not signed with a secret of the configuration within five minutes; a
// payload that is not one JSON object in valid UTF-8, or has a name twice; a message
// that lacks its room, its user or its text; U+0000. A message from a room that the
// configuration does not name is ignored. It follows no redirects, uses no proxy, and
// reads no answer beyond a bound. It never sends again by itself what the bridge may have
// read: the outbox decides that, by the kind of the error.
//
// # Words
//
//   - Bridge: the program at the other end.
//   - Event: one request of the bridge. It has an id of its own, which decides nothing;
//     what it is about is a message, whose id decides whether it is a duplicate.
//   - Payload: the JSON of an event. Where its fields stand is configured as paths, so
//     that foreign payloads fit.
//   - Address: "#ROOM/ROOT" or "@USER/ROOT" with escaped ids, without /ROOT for a thread
//     that is yet to begin. ROOT is always the first message of a thread.
//   - Cursor: a place in the bridge's history, which is the bridge's own text.
//
// # Its place
//
// Between adaptors/httpapi, which hands it events, and service/threads, which decides
// what a message is. It knows neither orders nor the journal. The scheme of the
// signatures is decision 0014.
package webhook
