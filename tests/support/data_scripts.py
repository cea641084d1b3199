"""Scripts that write and read data through C++: Arrow and Parquet, OpenCV, LMDB. See ``file_scripts``."""

from __future__ import annotations

ARROW = """
    import os, shutil, sys
    import pyarrow as pa, pyarrow.csv, pyarrow.dataset as ds, pyarrow.feather, pyarrow.json, pyarrow.orc
    import pyarrow.parquet as pq
    new = sys.argv[1:] == ["prepare"]
    value = 1 if new else 2
    table = pa.table({"x": [value, value + 10], "of": ["a", "b"]})

    def shown(found):
        print(sorted(map(str, found.to_pylist())))

    for folder in ("theirs",) if new else ("theirs", "mine"):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        pq.write_table(table, "a.parquet")
        for read in (pq.read_table, lambda path: pq.ParquetFile(path).read(), lambda path: pq.read_table(source=path),
                     lambda path: ds.dataset(path).to_table()):
            shown(read("a.parquet"))
        print(pq.read_metadata("a.parquet").num_rows, pq.read_schema("a.parquet").names)
        with pq.ParquetWriter("b.parquet", table.schema) as writer:
            writer.write_table(table)
        shown(pq.read_table(["a.parquet", "b.parquet"]))
        pq.write_metadata(table.schema, "_metadata")
        print(pq.read_schema("_metadata").names)
        pyarrow.feather.write_feather(table, "a.feather")
        shown(pyarrow.feather.read_table("a.feather"))
        pyarrow.csv.write_csv(table, "a.csv")
        shown(pyarrow.csv.read_csv("a.csv"))
        with pyarrow.csv.CSVWriter("b.csv", table.schema) as writer:
            writer.write_table(table)
        shown(pyarrow.csv.open_csv("b.csv").read_all())
        pyarrow.orc.write_table(table, "a.orc")
        shown(pyarrow.orc.read_table("a.orc"))
        for path, make in (("a.arrow", pa.ipc.new_file), ("a.arrows", pa.ipc.new_stream)):
            with make(path, table.schema) as writer:
                writer.write_table(table)
        with pa.OSFile("b.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        for path in ("a.arrow", "b.arrow"):
            shown(pa.ipc.open_file(pa.memory_map(path)).read_all())
            shown(pa.ipc.open_file(pa.OSFile(path)).read_all())
        shown(pa.ipc.open_stream("a.arrows").read_all())
        print(isinstance(pa.OSFile("a.arrow"), pa.OSFile), isinstance(pa.OSFile("a.arrow"), pa.NativeFile))
        with pa.output_stream("c.bin.gz") as sink:
            sink.write(b"%d" % value)
        print(pa.input_stream("c.bin.gz").read())
        with pa.OSFile("c.bin", "ab") as sink:
            sink.write(b"%d" % value)
        print(open("c.bin").read())
        with pa.create_memory_map("mapped.bin", 4) as mapped:
            mapped.write(b"%04d" % value)
        with pa.memory_map("mapped.bin", "r+") as mapped:
            mapped.write(b"%d" % value)
        print(open("mapped.bin").read())
        os.makedirs("apart", exist_ok=True)
        pq.write_table(table, "apart/linked.parquet")
        os.makedirs("led", exist_ok=True)
        if not os.path.lexists("led/here"):
            os.symlink("../apart", "led/here")
        pq.write_table(table, "led/own.parquet")
        shown(ds.dataset("led").to_table())
        hive = ds.partitioning(pa.schema([("of", pa.string())]), flavor="hive")
        for name, behavior in (("parts", "overwrite_or_ignore"), ("fresh", "delete_matching")):
            given = {"basename_template": f"{value}-{{i}}.parquet"} if name == "fresh" else {}
            ds.write_dataset(table, name, format="parquet", partitioning=hive, existing_data_behavior=behavior, **given)
            shown(ds.dataset(name, partitioning="hive").to_table())
            shown(pq.read_table(name))
            print(sorted(os.path.join(a, c) for a, _, cs in os.walk(name) for c in cs))
        try:
            ds.write_dataset(table, "parts", format="parquet")
        except pa.ArrowInvalid:
            print("not empty")
        if not new:
            for name in ("parts", "fresh"):
                shutil.rmtree(name)
                try:
                    ds.dataset(name)
                except FileNotFoundError:
                    print("gone")
            for _ in range(2):
                written = []
                ds.write_dataset(
                    table, "parts", format="parquet", partitioning=hive, existing_data_behavior=behavior,
                    file_visitor=written.append,
                )
                print(sorted((one.path, one.size == os.path.getsize(one.path)) for one in written))
            pq.write_to_dataset(table, "fresh")
            for name in ("parts", "fresh"):
                shown(ds.dataset(name, partitioning="hive").to_table())
                print(len(os.listdir(name)), sorted(os.listdir("parts/of=a")))
        os.chdir("..")
"""

NATIVE = """
    import os, shutil, sys
    import cv2, lmdb, numpy as np
    new = sys.argv[1:] == ["prepare"]
    value = 1 if new else 2
    for folder in ("theirs",) if new else ("theirs", "mine"):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        picture = np.full((16, 16, 3), value, np.uint8)
        print(cv2.imwrite("a.png", picture), cv2.imwrite(filename="b.png", img=picture))
        print(cv2.imread("a.png").mean(), cv2.imread(filename="b.png").mean(), cv2.imcount("a.png"))
        film = cv2.VideoWriter("c.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (16, 16))
        for frame in range(value):
            film.write(picture)
        film.release()
        seen = cv2.VideoCapture("c.avi")
        print(isinstance(film, cv2.VideoWriter), seen.isOpened(), [seen.read()[0] for _ in range(3)])

        class Camera(cv2.VideoCapture):  # none is made: OpenCV frees them twice, under plain Python too
            def frames(self):
                return []

        print(Camera.__bases__[0].__name__, issubclass(Camera, cv2.VideoCapture), Camera.frames(None))
        print([issubclass(kind, cv2.VideoCapture) for kind in (cv2.VideoCapture, cv2.VideoWriter, Camera, int)])
        for options in ({"path": "many"}, {"path": "one.mdb", "subdir": False}):
            for key in (b"1", b"2"):
                with lmdb.open(**options) as data, data.begin(write=True) as change:
                    change.put(b"%d %s" % (value, key), key)
            with lmdb.open(**options, readonly=True) as data, data.begin() as seen:
                print([*seen.cursor()], isinstance(data, lmdb.Environment))
        if not new:
            shutil.rmtree("many")
            for name in ("one.mdb", "a.png", "c.avi"):
                os.remove(name)
            print(cv2.imread("a.png"), cv2.VideoCapture("c.avi").isOpened(), cv2.imwrite("many/a.png", picture))
            for options in ({"path": "many"}, {"path": "one.mdb", "subdir": False}):
                try:
                    lmdb.open(**options, readonly=True)
                except lmdb.Error as error:
                    print(type(error))
                with lmdb.open(**options) as data, data.begin(write=True) as change:
                    change.put(b"anew", b"1")
                with lmdb.open(**options, readonly=True) as data, data.begin() as seen:
                    print([*seen.cursor()], sorted(os.listdir("many")))
        os.chdir("..")
"""
