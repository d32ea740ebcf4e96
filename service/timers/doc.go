// Package timers wakes agents at the times that were asked for, and ends the wakes whose
// time is over.
//
// A timer is made by cron.create and ended by cron.cancel, both of them calls through the
// door whose whole effect is in the journal. When a timer is due its agent is woken: the
// wake, the record of the occurrence and the timer's next time are one commit, and that
// commit holds only if nobody else has taken the occurrence before. So an occurrence
// wakes an agent once, also when two gateways look after one store, and it is neither
// lost nor repeated by a restart or a clock that is set.
//
// # When a timer is due
//
// A schedule is five cron fields (minute, hour, day of month, month, day of week, 0 is
// Sunday), a descriptor (@yearly, @monthly, @weekly, @daily, @hourly), or @every and a
// duration. Where both days are restricted, either is enough, as ever in cron. A field
// for seconds and a zone inside the expression are refused, and so is an expression that
// is never due within five years.
//
// Fields are meant in the timer's zone. There, on the days when clocks are changed,
//
//   - a time that is skipped is due at the next moment that the zone has; several of them
//     are due there once, together;
//   - a time that comes twice is due the first time only.
//
// So a timer for each five minutes pauses while an hour is repeated. One that is to run
// evenly says @every, which counts from the moment the timer was made and knows no zone.
//
// # What becomes of an occurrence
//
//   - woken: it has woken the agent.
//   - missed: nobody was there when it was due, and the policy for missed ones let it go.
//   - skipped: the last one's wake was open still, and the policy for overlaps let it go.
//   - queued: it waits for that wake to end.
//   - refused: the agent could not be woken; the fault is kept.
//
// An occurrence counts as missed when it is looked at more than Grace late. Of those that
// were missed, the policy "skip" runs none, "once" the last one in the place of all, and
// "all" the last MaxCatchUp. Each that runs meets the overlap policy like any other. While
// operators have stopped an agent, one wake of a timer is held for it and no more.
//
// The package is for the times alone: what an agent is told and may do is package
// threads', who may make a timer the door's and the policy's. It lists wakes of every
// cause, since it is what ends those that nobody has answered.
package timers
