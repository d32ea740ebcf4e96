package harvester_test

import (
	"fmt"

	"inband/harvester"
)

func ExampleAll() {
	reply := "The disk first, then the team.\n" +
		"[TOOL disk.usage {\"path\":\"/srv\"}]\n" +
		"`[TOOL is.quoted {}]`\n" +
		"```tool #k7q2\n" +
		"dm.send {\"to\":\"ops\",\"text\":\"looking\"}\n" +
		"```\n"
	directives, stats := harvester.All([]byte(reply), harvester.Config{})
	for _, d := range directives {
		fmt.Printf("%s %s %s key=%q\n", d.Form, d.Op, d.Params, d.Key)
	}
	fmt.Println(stats.Broken, "broken")
	// Output:
	// tool disk.usage {"path":"/srv"} key=""
	// tool dm.send {"to":"ops","text":"looking"} key="k7q2"
	// 0 broken
}

func ExampleScanner() {
	s := harvester.New(harvester.Config{
		ExecHosts: harvester.DefaultExecHosts(),
		Found: func(d harvester.Directive) {
			fmt.Println(d.Op, string(d.Params), "at", d.Start)
		},
	})
	for _, delta := range []string{"On it. [TO", "OL tools.list {", "}", "] Done."} {
		s.Write([]byte(delta))
	}
	s.Close(true)
	// Output:
	// tools.list {} at 7
}
