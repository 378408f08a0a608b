"""The viewer: `espalier ui` shows runs in a browser, from the folders that they write.

    commands     espalier ui
    server       listening socket, token, the process
    app          the routes of API.md
    runs         finding runs; the state of one
    sources      where a run's attempts are: streams, or files of runs that wrote none
    run_index    attempts of a run in SQLite: what lists, filters and search read
    attempts     lists, groups, histograms, failures
    one_attempt  messages, tokens and evidence of one attempt; where a group's attempts part
    curves       figures of steps, notices, time-line
    report       sections of the core's report, made again when something is published
    export       a run as one HTML file
    comparison   two to four sides, paired by task
    lineage      a task, its documents, and the steps that trained on it
    search       words in messages
    labels       the file of labels, and rows made from it

It reads runs and never writes into one: its index and labels are in folders of its own.
"""
