# SPDX-License-Identifier: Apache-2.0
"""Plans in Hugging Face's Trainer and in Lightning's, if they are installed."""

import importlib.util
import os
import tempfile
import unittest

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import comp
from support import QUICK, operators_of, plan_file, some_images


def there(*packages):
    return unittest.skipUnless(all(importlib.util.find_spec(p) for p in packages), f'no {" and ".join(packages)} here')


@there('transformers', 'accelerate')
class HuggingFace(unittest.TestCase):
    def train(self, folder, epochs=1, **more):
        import transformers

        import comp.transformers

        torch.manual_seed(5)
        shape = transformers.BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=2,
        )
        model = transformers.BertForSequenceClassification(shape)
        words = torch.randint(0, 64, (96, 12))
        data = [{'input_ids': w, 'attention_mask': torch.ones_like(w), 'labels': w[0] % 2} for w in words]
        arguments = transformers.TrainingArguments(
            os.path.join(folder, 'out'),
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            report_to=[],
            save_strategy='no',
            disable_tqdm=True,
            use_cpu=True,
            seed=5,
            **more,
        )
        callback = comp.transformers.PlanCallback(os.path.join(folder, 'plan.json'), search=QUICK)
        seen = []
        model.bert.encoder.layer[0].output.dense.register_forward_hook(lambda m, i, out: seen.append(out.dtype))
        trainer = transformers.Trainer(
            model, arguments, train_dataset=data, eval_dataset=data[:32], callbacks=[callback]
        )
        return trainer, callback, seen

    def test_the_first_run_searches_and_all_train_under_the_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer, callback, seen = self.train(folder)
            done = trainer.train()
            self.assertEqual(done.global_step, 6)
            self.assertTrue(os.path.exists(os.path.join(folder, 'plan.json')))
            again, callback, seen = self.train(folder)
            plan = comp.load(callback.path)
            low = 'bf16' in {
                p for name, kind, p in plan.operators if name == 'bert.encoder.layer.0.output.dense.linear'
            }
            again.train()
            self.assertTrue(callback.plan.in_use)
            self.assertEqual(callback.plan.letters, plan.letters)
            self.assertEqual(torch.bfloat16 in seen, low)
            self.assertNotIn('planned', again.model.forward.__qualname__)
            self.assertIn('eval_loss', again.evaluate())
            for _ in range(2):  # a training that was interrupted is begun anew
                callback.on_train_begin(again.args, None, None, model=again.model)
                self.assertFalse(hasattr(again.model.forward.without_plan, 'without_plan'))

    def test_a_language_model_whose_loss_counts_the_batchs_tokens(self):
        import transformers

        import comp.transformers

        torch.manual_seed(5)
        shape = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
        model = transformers.GPT2LMHeadModel(shape)
        data = [{'input_ids': w, 'labels': w} for w in torch.randint(0, 64, (96, 12))]
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder,
                num_train_epochs=1,
                per_device_train_batch_size=16,
                report_to=[],
                save_strategy='no',
                disable_tqdm=True,
                use_cpu=True,
            )
            callback = comp.transformers.PlanCallback(os.path.join(folder, 'plan.json'), search=QUICK)
            transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
            self.assertTrue(callback.plan.in_use)

    def test_a_product_that_the_model_upcasts_is_protected_and_what_is_around_it_is_not(self):
        import transformers

        torch.manual_seed(5)
        shape = transformers.GPT2Config(
            vocab_size=64,
            n_positions=16,
            n_embd=32,
            n_layer=1,
            n_head=2,
            reorder_and_upcast_attn=True,
            attn_implementation='eager',
        )
        model = transformers.GPT2LMHeadModel(shape)
        words = torch.randint(0, 64, (2, 8))

        def run(plan):
            with plan:
                return model(input_ids=words, labels=words).loss

        self.assertEqual([op.name for op in operators_of(model, run) if op.fixed_by_author], ['baddbmm'])
        low = ('addmm', 'baddbmm', 'linear')
        plan = comp.plan(plan_file(model, run, kinds=low, protect_blocks=False), model)
        for _ in range(2):
            run(plan).backward()  # the model raises if the product is not in FP32
        self.assertEqual(plan.letters.count('b'), 5)

    def test_the_trainers_own_mixed_precision_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer, _, _ = self.train(folder, bf16=True)
            with self.assertRaisesRegex(comp.SettingsError, "bf16 or fp16 of TrainingArguments"):
                trainer.train()


@there('lightning')
class Lightning(unittest.TestCase):
    def setUp(self):
        import lightning

        x, y = some_images(64)
        self.loader = loader = DataLoader(TensorDataset(x.flatten(1), y), 16)
        self.seen = seen = []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                torch.manual_seed(4)
                self.net = nn.Sequential(nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
                self.net[2].register_forward_hook(lambda m, i, out: seen.append((self.training, out.dtype)))

            def training_step(self, batch, index):
                loss = cross_entropy(self.net(batch[0]), batch[1])
                self.log('train', loss)
                self.log_dict({'twice': 2 * loss.detach()})
                return loss

            def validation_step(self, batch, index):
                self.log('loss', cross_entropy(self.net(batch[0]), batch[1]))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        def fit(module, plugins, epochs, **more):
            lightning.Trainer(
                max_epochs=epochs,
                accelerator='cpu',
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                plugins=plugins,
                **more,
            ).fit(module, loader, loader)

        self.module, self.fit = Module, fit

    def test_a_trainer_trains_and_validates_under_a_plan(self):
        import comp.lightning

        module = self.module()
        batch = next(iter(self.loader))

        def run(plan):
            with plan:
                return module.training_step(batch, 0)

        precision = comp.lightning.PlanPrecision(plan_file(module, run, kinds=('linear',)))
        self.seen.clear()
        self.fit(module, [precision], 2, num_sanity_val_steps=0)
        training = [kind for trains, kind in self.seen if trains]
        self.assertEqual(training, [torch.bfloat16] * 8)
        self.assertEqual({kind for trains, kind in self.seen if not trains}, {torch.bfloat16})
        self.assertTrue(precision.plan.in_use)

    def test_a_training_without_a_file_finds_the_plan_with_the_trainers_own_steps(self):
        import comp.lightning

        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'plan.json')
            search = {'policy': 'all_fp32', 'batches_per_epoch': 8, 'tune': False}
            precision = comp.lightning.PlanPrecision(file, search=search)
            plain, planned = self.module(), self.module()
            for module, plugins in ((plain, []), (planned, [precision])):
                self.fit(module, plugins, 60, accumulate_grad_batches=2)
            for mine, theirs in zip(plain.parameters(), planned.parameters()):
                self.assertTrue(torch.equal(mine, theirs))
            self.assertEqual(precision.plan._inner.batches, 120)
            self.assertEqual(set(comp.load(file).letters), {'1'})
            again = comp.lightning.PlanPrecision(file)
            self.fit(self.module(), [again], 1)
            self.assertTrue(again.plan.in_use)


if __name__ == '__main__':
    unittest.main()
