"""Scripts that save with real libraries and read back: in a folder of the user's, and in one of their own."""

from __future__ import annotations

LIBRARIES = """
    import os, shutil, sys
    import h5py, numpy as np, safetensors.numpy, safetensors.torch, tokenizers, torch
    from safetensors import safe_open
    new = sys.argv[1:] == ["prepare"]
    value = 1 if new else 2
    for folder in ("theirs",) if new else ("theirs", "mine"):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        # PyTorch
        torch.save({"a": value}, "a.pt")
        print(torch.load("a.pt"))
        torch.save(torch.full((3,), value), "mapped.pt")
        print(torch.load("mapped.pt", mmap=True))
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, value)), "jit.pt")
        print(torch.jit.load("jit.pt").weight.shape)
        with torch.package.PackageExporter("a.package") as package:
            package.save_pickle("a", "a.pkl", value)
        print(torch.package.PackageImporter("a.package").load_pickle("a", "a.pkl"))
        shared = torch.from_file("shared.bin", shared=True, size=4, dtype=torch.uint8)
        shared[:value] = value
        print(torch.from_file("shared.bin", False, 4, dtype=torch.uint8), open("shared.bin", "rb").read())
        torch.UntypedStorage.from_file("shared.bin", shared=True, nbytes=4)[3] = 9
        print(open("shared.bin", "rb").read(), list(torch.UntypedStorage.from_file("shared.bin", nbytes=4)))
        with torch.profiler.profile() as traced:
            torch.ones(value)
        traced.export_chrome_trace("trace.json")
        print(os.path.getsize("trace.json") > 0)
        # safetensors
        for module, tensor in ((safetensors.torch, torch.full((2,), value)), (safetensors.numpy, np.full(2, value))):
            module.save_file({"x": tensor}, "x.safetensors")
            print(module.load_file("x.safetensors"))
        with safe_open("x.safetensors", framework="np") as file:
            print(file.get_tensor("x"))
        safetensors.torch.save_file({"x": torch.full((2,), value)}, "t.tmp")
        os.replace("t.tmp", "x.safetensors")
        print(safetensors.torch.load_file("x.safetensors"))
        # tokenizers
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": value, "?": 0}, unk_token="?"))
        tokenizer.save("tokenizer.json")
        print(tokenizers.Tokenizer.from_file("tokenizer.json").encode("word").ids)
        print(tokenizer.model.save("."), open("vocab.json").read())
        # HDF5
        for mode in ("w", "a", "r+"):
            with h5py.File("data.h5", mode) as file:
                file[f"{mode}{value}"] = np.full(2, value)
            with h5py.File("data.h5") as file:
                print(sorted(file))
        try:
            h5py.File("data.h5", "x")
        except FileExistsError:
            print("exists")
        # NumPy
        np.save("array.npy", np.full(4, value))
        mapped = np.load("array.npy", mmap_mode="r+")
        mapped[0] = 7
        mapped.flush()
        print(np.load("array.npy"))
        raw = np.memmap("raw.bin", np.uint8, "w+", shape=(4,))
        raw[:] = value
        raw.flush()
        np.memmap("raw.bin", np.uint8, "r+")[1] = 9
        print(np.fromfile("raw.bin", np.uint8))
        np.full(4, value, np.uint8).tofile("raw.bin")
        print(np.fromfile("raw.bin", np.uint8))
        np.savez("arrays.npz", a=np.full(2, value))
        print(np.load("arrays.npz")["a"])
        os.chdir("..")
    if not new:
        shutil.rmtree("theirs")
        print(os.path.exists("theirs/a.pt"))
"""

MATRICES = """
    import os, pathlib, sys
    import numpy, scipy.io, scipy.sparse
    value = 1 if sys.argv[1:] == ["prepare"] else 2
    for folder in ("theirs",) if value == 1 else ("theirs", "mine"):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        scipy.io.mmwrite("named", numpy.full((2, 2), value))  # it adds the end of the name itself
        scipy.io.mmwrite(pathlib.Path("sparse.mtx"), scipy.sparse.coo_array(([value], ([0], [1])), shape=(2, 2)))
        with open("stream.mtx", "wb") as stream:
            scipy.io.mmwrite(stream, numpy.full((1, 2), value))
        for name in ("named.mtx", pathlib.Path("sparse.mtx"), "stream.mtx"):
            found = scipy.io.mmread(name)
            print(scipy.io.mminfo(name), found.toarray().tolist() if scipy.sparse.issparse(found) else found.tolist())
        scipy.io.savemat("saved.mat", {"x": value})
        print(scipy.io.loadmat("saved.mat")["x"])
        os.remove("sparse.mtx")
        try:
            scipy.io.mmread("sparse.mtx")
        except Exception:
            print("gone")
        os.chdir("..")
"""

PROCESSES = """
    import concurrent.futures, multiprocessing, os
    import joblib

    with open("all.txt", "a") as file:  # each process runs the script's module, too
        file.write(" once more")

    def work(name):
        with open(name, "a") as file:
            file.write(f" and of the trial {os.path.exists('gone.txt')}")
        with open(name) as file:
            return file.read()

    def save(name, value):
        import numpy, safetensors.numpy
        safetensors.numpy.save_file({"x": numpy.full(2, value)}, name)
        return safetensors.numpy.load_file(name)

    if __name__ == "__main__":
        open("first.txt", "w").write("diverted before")
        os.remove("gone.txt")
        for method in ("spawn", "forkserver"):
            process = multiprocessing.get_context(method).Process(target=work, args=("log.txt",))
            process.start()
            process.join()
            print(process.exitcode, open("log.txt").read(), open("all.txt").read())
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            print(pool.submit(work, "first.txt").result(), pool.submit(save, "x.safetensors", 1).result())
        print(joblib.Parallel(2, "loky")(joblib.delayed(work)(name) for name in ("log.txt", "first.txt")))
"""

TRANSFORMERS = """
    import os, sys
    import torch, transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    torch.manual_seed(len(sys.argv))
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8, n_positions=8)
    tokenizer = Tokenizer(models.WordLevel({"a": 1 + len(sys.argv), "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    for folder in sys.argv[1:] or ["theirs", "mine"]:
        model = transformers.GPT2LMHeadModel(config)
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
        loaded = transformers.GPT2LMHeadModel.from_pretrained(folder)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters()))
        print(transformers.AutoTokenizer.from_pretrained(folder)("a b")["input_ids"], sorted(os.listdir(folder)))
        model.save_pretrained(folder + "-in-parts", max_shard_size=300)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder + "-in-parts")
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters()))
        print(len([name for name in os.listdir(folder + "-in-parts") if "safetensors" in name]))
        size = 2 if folder == "theirs" else 3
        torch.export.save(torch.export.export(torch.nn.Linear(size, 1), (torch.ones(1, size),)), folder + ".pt2")
        print(torch.export.load(folder + ".pt2").state_dict["weight"].shape)
"""

TENSORFLOW = """
    import glob, os, shutil, sys
    import numpy as np, tensorflow as tf
    gfile = tf.io.gfile
    preparing = sys.argv[1:] == ["prepare"]
    value = 1.0 if preparing else 2.0
    def records(path):
        return [int(r.numpy()) for r in tf.data.TFRecordDataset([path])]
    def numbers(dataset):
        return [int(x) for x in dataset]
    for top in ("theirs",) if preparing else ("theirs", "mine"):
        gfile.makedirs(top + "/deep/er")
        os.chdir(top)
        with tf.io.TFRecordWriter("a.tfrecord") as writer:
            writer.write(str(int(value)).encode())
        print(records("a.tfrecord"), numbers(tf.data.TFRecordDataset("a.tfrecord").map(tf.strings.to_number)))
        tf.io.write_file("b.txt", f"{value}")
        tf.io.write_file(tf.constant("c.txt"), f"{value}")
        print(tf.io.read_file("b.txt").numpy(), tf.io.read_file(tf.constant("c.txt")).numpy())
        with gfile.GFile("d.txt", "w") as file:
            file.write(f"{value}")
        with gfile.GFile("d.txt", "a") as file:
            file.write(f"{value}")
        print(gfile.GFile("d.txt").read(), open("d.txt").read(), gfile.stat("d.txt").length)
        gfile.copy("d.txt", "e.txt", overwrite=True)
        gfile.rename("b.txt", "e.txt", overwrite=True)
        print(gfile.GFile("e.txt").read(), gfile.exists("b.txt"), os.path.exists("b.txt"))
        with gfile.GFile("b.txt", "w") as file:
            file.write("again")
        # saved datasets, caches, snapshots
        data = tf.data.Dataset.range(int(value) * 3)
        data.save("saved")
        print(numbers(tf.data.Dataset.load("saved")))
        if not preparing:
            print(numbers(data.cache("cached-" + top)), numbers(data.cache("cached-" + top)))
        print(numbers(data.snapshot("snap-" + top)))
        if preparing:
            gfile.makedirs("old/a")
            tf.io.write_file("old/a/x.txt", "theirs")
            for path in ("stale-" + top, "old/stale", "near-" + top, f"near-{top}_1"):
                numbers(data.cache(path))
        else:
            for path in os.listdir("."):
                if path.startswith(("stale-", f"near-{top}_1")):
                    os.remove(path)
            for folder in ("old", "snap-" + top):
                shutil.rmtree(folder, ignore_errors=True)
            os.mkdir("old")
            fresh = data.map(lambda x: x + 100)
            for path in ("stale-" + top, "old/stale"):
                print(numbers(fresh.cache(path)))
            print(numbers(fresh.snapshot("snap-" + top)), numbers(fresh.cache("near-" + top)))
            for times in (10, 20):
                for path in glob.glob("stale-*"):
                    os.remove(path)
                again = data.map(lambda x: x * times).cache("stale-" + top)
                for names in (gfile.listdir("."), os.listdir(".")):
                    print([name for name in names if name.startswith("stale-")])
                print(numbers(again), [(path, os.path.exists(path)) for path in sorted(glob.glob("stale-*"))])
            shutil.rmtree("old")
            try:
                tf.io.read_file("old/a/x.txt")
            except tf.errors.NotFoundError:
                print("gone")
            tf.io.write_file("old/a/x.txt", "anew")
            print(tf.io.read_file("old/a/x.txt").numpy(), os.listdir("old"), os.listdir("old/a"))
        # a session of TensorFlow 1
        v1 = tf.compat.v1
        for number in range(1 if preparing else 2):
            with tf.Graph().as_default(), v1.Session() as session:
                kept = v1.get_variable("kept", initializer=value + number)
                saver = v1.train.Saver()
                if number:
                    saver.restore(session, v1.train.latest_checkpoint("."))
                    print(session.run(kept))
                session.run(v1.global_variables_initializer())
                print(saver.save(session, "./v1.ckpt"), saver.save(session, "./v1.ckpt", global_step=int(value)))
                saver.restore(session, "./v1.ckpt")
                print(session.run(kept), v1.train.latest_checkpoint("."))
                by_name = {"sess": session, "save_path": "./v1.ckpt"}
                print(saver.save(**by_name), saver.restore(**by_name))
                print(sorted(name for name in os.listdir(".") if "v1" in name))
        # and without one
        eager = tf.Variable(value, name="eager")
        saver = v1.train.Saver([eager])
        print(saver.save(None, "./eager"), saver.save(sess=None, save_path="./eager", global_step=1))
        eager.assign(0.0)
        saver.restore(None, "./eager")
        print(eager.numpy(), saver.last_checkpoints, sorted(name for name in os.listdir(".") if "eager" in name))
        # checkpoints: a manager that resumes, and sweeps what is too many
        variable = tf.Variable(0.0)
        checkpoint = tf.train.Checkpoint(variable=variable)
        manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=1)
        checkpoint.restore(manager.latest_checkpoint)
        print(variable.numpy(), os.path.basename(manager.latest_checkpoint or "-"))
        variable.assign(value)
        print(manager.save(), checkpoint.save("managed/other"), sorted(os.listdir("managed")))
        variable.assign(0.0)
        checkpoint.restore(tf.train.latest_checkpoint("managed")).assert_consumed()
        print(variable.numpy(), os.path.basename(manager.latest_checkpoint))
        print(checkpoint.write("written/one"), checkpoint.write("written/two"), sorted(os.listdir("written")))
        variable.assign(0.0)
        tf.train.Checkpoint(variable=variable).read("written/one").expect_partial()
        print([name for name, _ in tf.train.list_variables("written/one")][-1:], variable.numpy())
        shutil.copytree("written", "copied", dirs_exist_ok=True)
        tf.train.Checkpoint(variable=variable).read("copied/two").expect_partial()
        print(variable.numpy(), tf.train.load_variable("written/two", "variable/.ATTRIBUTES/VARIABLE_VALUE"))
        shutil.rmtree("written")
        print(checkpoint.write("written/one"), os.listdir("written") and tf.train.list_variables("written/one")[:0])
        module = tf.Module()
        module.variable = tf.Variable(value)
        tf.saved_model.save(module, "model")
        print(tf.saved_model.load("model").variable.numpy(), sorted(os.listdir("model")))
        shutil.rmtree("deployed", ignore_errors=True)
        shutil.copytree("model", "deployed")
        print(tf.saved_model.load("deployed").variable.numpy())
        with tf.summary.create_file_writer("logs").as_default():
            tf.summary.scalar("x", value, step=0)
        for folder in ("logs", "removed"):
            os.makedirs(folder, exist_ok=True)
            tf.profiler.experimental.start(folder)
            tf.profiler.experimental.stop()
            print(len(os.listdir(folder + "/plugins/profile")) - (top == "theirs" and not preparing))
            if not preparing:
                shutil.rmtree(folder)
                writer = tf.summary.create_file_writer(folder + "/run")
                writer.close()
                print(os.listdir(folder), len(os.listdir(folder + "/run")), len(gfile.glob(folder + "/run/*")))
        if preparing:
            with gfile.GFile("deep/er/f.txt", "w") as file:
                file.write("deep")
        else:
            gfile.rmtree("deep")
            print(gfile.exists("deep"), gfile.exists("deep/er/f.txt"), os.path.exists("deep"))
            gfile.makedirs("deep/er")
            with gfile.GFile("deep/er/g.txt", "w") as file:
                file.write("new")
            print(gfile.listdir("deep/er"), os.listdir("deep/er"), gfile.glob("deep/er/*"))
            gfile.remove("d.txt")
            print(gfile.exists("d.txt"), "d.txt" in gfile.listdir("."), gfile.glob("d.tx*"))
            try:
                gfile.GFile("d.txt").read()
            except tf.errors.NotFoundError:
                print("not found")
        os.chdir("..")
"""

KERAS = """
    import os, sys
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, numpy as np
    keras.utils.set_random_seed(len(sys.argv))
    for folder in sys.argv[1:] or ["theirs", "mine"]:
        os.makedirs(folder, exist_ok=True)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        keep = keras.callbacks.ModelCheckpoint(folder + "/best.keras")
        weights = keras.callbacks.ModelCheckpoint(folder + "/w.weights.h5", save_weights_only=True)
        back_up = keras.callbacks.BackupAndRestore(folder + "/back-up")
        model.fit(np.ones((4, 2)), np.ones(4), callbacks=[keep, weights, back_up], verbose=0)
        x = np.ones((1, 2))
        expected = model.predict(x, verbose=0)
        assert (keras.models.load_model(folder + "/best.keras").predict(x, verbose=0) == expected).all()
        model.load_weights(folder + "/w.weights.h5")
        model.save(folder + "/legacy.h5")
        assert (keras.models.load_model(folder + "/legacy.h5", compile=False).predict(x, verbose=0) == expected).all()
        print(sorted(os.listdir(folder)))
"""

TRAINERS = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import lightning, torch, transformers
    rows = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor([1, 2, 3])} for _ in range(4)]
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8, n_positions=8)

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
        def training_step(self, batch, index):
            return self.layer(batch[0]).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def seen(folder):
        return sorted(os.path.join(a, c) for a, b, cs in os.walk(folder) for c in cs)

    preparing = sys.argv[1:] == ["prepare"]
    for folder in ("theirs",) if preparing else ("theirs", "mine"):
        options = transformers.TrainingArguments(
            folder + "/hf", max_steps=2 if preparing else 4, save_steps=1, save_total_limit=2, report_to=[],
            disable_tqdm=True, use_cpu=True, per_device_train_batch_size=1, save_only_model=False, logging_steps=1,
        )
        trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), options, train_dataset=rows)
        there = os.path.isdir(folder + "/hf")
        resume = transformers.trainer_utils.get_last_checkpoint(folder + "/hf") if there else None
        print(resume)
        trainer.train(resume_from_checkpoint=resume)
        print(trainer.state.global_step, seen(folder + "/hf"))
        loaded = transformers.GPT2LMHeadModel.from_pretrained(folder + "/hf/checkpoint-4") if not preparing else 0
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=1)
        keep = lightning.pytorch.callbacks.ModelCheckpoint(folder + "/pl", save_last=True, filename="net-{step}")
        pl = lightning.Trainer(
            max_epochs=2, callbacks=[keep], logger=False, enable_progress_bar=False, accelerator="cpu",
            enable_model_summary=False,
        )
        pl.fit(Net(), data, ckpt_path=folder + "/pl/last.ckpt" if os.path.exists(folder + "/pl/last.ckpt") else None)
        print(seen(folder + "/pl"), os.path.basename(keep.best_model_path))
        Net.load_from_checkpoint(folder + "/pl/last.ckpt")
"""
