"""Mask and compile times against published grammar libraries, in one process, alternating schema by schema, in processor
time of this thread. Development only: needs a Python with xgrammar and/or llguidance and a tokenizer.json. Ours is timed
by `deepinfer grammar --bench` on the same schemas and the same token sequences' texts.

usage: grammar_compare.py PATH/deepinfer TOKENIZER.json [SUITE.jsonl] [LIMIT]
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def summary(values):
    if not values:
        return "none"
    return f"median {statistics.median(values):9.2f}  p99 {percentile(values, 0.99):10.2f}  mean {statistics.fmean(values):9.2f}  n {len(values)}"


class XGrammar:
    name = "xgrammar"

    def __init__(self, path, tokenizer):
        import torch
        import xgrammar
        self.xgr = xgrammar
        torch.set_num_threads(1)
        vocab = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
        self.info = xgrammar.TokenizerInfo(vocab, vocab_type=xgrammar.VocabType.BYTE_LEVEL, vocab_size=len(vocab), stop_token_ids=[1])
        self.bitmask = xgrammar.allocate_token_bitmask(1, len(vocab))

    def run(self, schema, sequences, compile_ms, mask_us):
        compiler = self.xgr.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        t = time.process_time_ns()
        compiled = compiler.compile_json_schema(schema, any_whitespace=True)
        compile_ms.append((time.process_time_ns() - t) / 1e6)
        reached = True
        for ids in sequences:
            m = self.xgr.GrammarMatcher(compiled)
            for i in ids + [None]:
                t = time.thread_time_ns()
                m.fill_next_token_bitmask(self.bitmask)
                mask_us.append((time.thread_time_ns() - t) / 1e3)
                if i is not None and not m.accept_token(i):
                    reached = False
                    break
        return reached


class LLGuidance:
    name = "llguidance"

    def __init__(self, path, tokenizer):
        import llguidance
        import numpy
        self.ll, self.np = llguidance, numpy
        self.tok = llguidance.LLTokenizer(open(path).read(), eos_token=1)
        import llguidance.numpy as lln
        self.lln = lln
        self.bitmask = lln.allocate_token_bitmask(1, self.tok.vocab_size)

    def run(self, schema, sequences, compile_ms, mask_us):
        t = time.process_time_ns()
        grammar = self.ll.LLMatcher.grammar_from_json_schema(schema)
        m = self.ll.LLMatcher(self.tok, grammar)
        compile_ms.append((time.process_time_ns() - t) / 1e6)
        if m.is_error():
            raise ValueError(m.get_error())
        reached = True
        for ids in sequences:
            m = self.ll.LLMatcher(self.tok, grammar)
            for i in ids + [None]:
                t = time.thread_time_ns()
                self.lln.fill_next_token_bitmask(m, self.bitmask)
                mask_us.append((time.thread_time_ns() - t) / 1e3)
                if i is not None and not m.consume_token(i):
                    reached = False
                    break
        return reached


def main():
    from tokenizers import Tokenizer
    program, path = sys.argv[1], sys.argv[2]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    suite = sys.argv[3] if len(sys.argv) > 3 else os.path.join(root, "tests/grammar/conformance.jsonl")
    limit = int(sys.argv[4]) if len(sys.argv) > 4 else 10 ** 9
    tokenizer = Tokenizer.from_file(path)
    lines = [json.loads(l) for l in open(suite, encoding="utf-8")]
    lines = [l for l in lines if l["valid"] and not l.get("any_order")][:limit]
    rivals = []
    for kind in (XGrammar, LLGuidance):
        try:
            rivals.append(kind(path, tokenizer))
        except Exception as e:  # not installed, or another interface
            print(f"{kind.name}: not measured ({type(e).__name__}: {e})")
    results = {r.name: {"compile_ms": [], "mask_us": [], "refused": 0, "unreachable": 0} for r in rivals}
    ours = {"mask": [], "compile": [], "p99": []}
    batches = [lines[i:i + 20] for i in range(0, len(lines), 20)]
    for batch in batches:  # alternating: a batch of ours, the same batch of theirs
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
            for l in batch:
                f.write(json.dumps(l, ensure_ascii=False) + "\n")
            f.flush()
            out = subprocess.run([program, "grammar", "--bench", "--json", "--samples-out", "--tokenizer", path, "--suite", f.name], stdout=subprocess.PIPE)
            report = json.loads(out.stdout)
        ours["mask"] += report["mask_us_all"]
        ours["compile"] += report["compile_ms_all"]
        for line in batch:
            sequences = [tokenizer.encode(t, add_special_tokens=False).ids for t in line["valid"]]
            for r in rivals:
                res = results[r.name]
                try:
                    if not r.run(line["schema"], sequences, res["compile_ms"], res["mask_us"]):
                        res["unreachable"] += 1
                except Exception:
                    res["refused"] += 1
    print(f"{len(lines)} schemas of {os.path.basename(suite)}, vocabulary {tokenizer.get_vocab_size()}, processor time, cold grammar for every schema")
    print(f"{'deepinfer':12} mask us     {summary(ours['mask'])}\n{'':12} compile ms  {summary(ours['compile'])}")
    for r in rivals:
        res = results[r.name]
        print(f"{r.name:12} mask us     {summary(res['mask_us'])}\n{'':12} compile ms  {summary(res['compile_ms'])}\n{'':12} refused {res['refused']}, valid instances not reachable in {res['unreachable']} schemas")


main()
